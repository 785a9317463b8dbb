#include "backend/options.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/host_flags.h"
#include "base/bytes.h"

namespace sluice::backend {
namespace {

TEST(Options, EveryRowIsCompleteAndUnique) {
    std::set<std::string> flags;
    std::set<std::string> variables;
    for (const Option& o : options()) {
        EXPECT_TRUE(std::string(o.flag).starts_with("--"));
        EXPECT_TRUE(std::string(o.variable).starts_with("SLUICE_"));
        EXPECT_TRUE(flags.insert(o.flag).second) << o.flag;
        EXPECT_TRUE(variables.insert(o.variable).second) << o.variable;
        EXPECT_GT(std::string(o.help).size(), 20U) << o.flag;
        EXPECT_NE(options_help(80).find(o.flag), std::string::npos);
        EXPECT_NE(options_help(80).find(o.variable), std::string::npos);
    }
}

// The default that help tells is the one of the Config.
TEST(Options, DefaultsInHelpAreTheDefaults) {
    for (const Option& o : options()) {
        Config config;
        config.cache_bytes = 5;
        config.io_threads = 3;
        config.dense_weights = DenseWeights::mmap;
        config.io_engine = IoEngine::pread;
        config.direct_io = false;
        config.verbosity = Verbosity::debug;
        ASSERT_TRUE(o.set(config, o.default_text).ok()) << o.flag;
        const Config fresh;
        const bool one_is_default = config.cache_bytes == fresh.cache_bytes || config.io_threads == fresh.io_threads ||
                                    config.dense_weights == fresh.dense_weights ||
                                    config.io_engine == fresh.io_engine || config.direct_io == fresh.direct_io ||
                                    config.verbosity == fresh.verbosity;
        EXPECT_TRUE(one_is_default) << o.flag;
    }
}

TEST(Options, OursAreTakenOutAndTheRestKeepsItsOrder) {
    Config config;
    std::vector<std::string> a{"-m",           "x.gguf",         "--cache-mb",   "1.5", "-p",
                               "--no-odirect", "--io-threads=4", "--no-odirect", "-n",  "3"};
    ASSERT_TRUE(take_options(config, a).ok());
    EXPECT_EQ(a, (std::vector<std::string>{"-m", "x.gguf", "-p", "--no-odirect", "-n", "3"}));
    EXPECT_EQ(config.cache_bytes, 1536 * KiB);
    EXPECT_EQ(config.io_threads, 4U);
    EXPECT_FALSE(config.direct_io);
}

TEST(Options, AfterTwoDashesNothingIsOurs) {
    Config config;
    std::vector<std::string> a{"--", "--cache-mb", "7"};
    ASSERT_TRUE(take_options(config, a).ok());
    EXPECT_EQ(a.size(), 3U);
    EXPECT_FALSE(config.cache_bytes.has_value());
}

TEST(Options, WhatDoesNotParseIsAnErrorThatNamesTheOption) {
    const std::vector<std::vector<std::string>> bad{
        {"--cache-mb", "abc"},   {"--cache-mb", "0"},         {"--cache-mb", "-5"},   {"--cache-mb"},
        {"--cache-mb="},         {"--io-threads", "0"},       {"--io-threads", "65"}, {"--io-threads", "4x"},
        {"--io-engine", "fast"}, {"--dense-weights", "Anon"}, {"--no-odirect=1"},     {"--sluice-log", "loud"},
    };
    for (std::vector<std::string> a : bad) {
        Config config;
        const std::string flag = a[0].substr(0, a[0].find('='));
        const Status s = take_options(config, a);
        EXPECT_FALSE(s.ok()) << a[0];
        EXPECT_NE(s.message().find(flag), std::string::npos) << s.message();
    }
}

TEST(Options, TheEnvironmentIsReadAndItsMistakesAreErrors) {
    Config config;
    const char* good[] = {"PATH=/bin", "SLUICE_CACHE_MB=8G", "SLUICE_NO_ODIRECT=1", "SLUICE_CACHE_DIR=/x", nullptr};
    ASSERT_TRUE(read_environment(config, good).ok());
    EXPECT_EQ(config.cache_bytes, 8 * GiB);
    EXPECT_FALSE(config.direct_io);
    for (const char* entry :
         {"SLUICE_CASH_MB=1", "SLUICE_CACHE_MB=", "SLUICE_CACHE_MB=lots", "SLUICE_NO_ODIRECT=maybe"}) {
        const char* bad[] = {entry, nullptr};
        const Status s = read_environment(config, bad);
        EXPECT_FALSE(s.ok()) << entry;
        EXPECT_NE(s.message().find("SLUICE_"), std::string::npos);
    }
}

TEST(Options, ValuesSetByProgramsAreCheckedToo) {
    Config config;
    config.io_threads = 0;
    EXPECT_FALSE(validate(config).ok());
    config.io_threads = 64;
    EXPECT_TRUE(validate(config).ok());
    config.cache_bytes = 0;
    EXPECT_FALSE(validate(config).ok());
}

TEST(HostFlags, WhatWouldReadEverythingIsRefusedByName) {
    const auto check = [](std::vector<std::string> a) { return check_host_flags(a); };
    EXPECT_TRUE(check({"tool", "-m", "x", "--load-mode", "mmap"}).ok());
    EXPECT_TRUE(check({"tool", "-lm", "auto,mmap"}).ok());
    for (const char* mode : {"none", "dio", "mlock", "mmap+mlock", "mmap,dio"}) {
        EXPECT_FALSE(check({"tool", "-lm", mode}).ok()) << mode;
    }
    EXPECT_FALSE(check({"tool", "--check-tensors"}).ok());
}

}  // namespace
}  // namespace sluice::backend
