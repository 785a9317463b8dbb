#include "backend/options.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

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
        for (const Place place : {Place::library, Place::tool, Place::run, Place::serve}) {
            const bool shown =
                options_help(80, place).find(std::string("  ") + o.flag +
                                             (o.value_name != nullptr ? " "
                                              : off_flag(o).empty()   ? "\n"
                                                                    : ", " + off_flag(o) + "\n")) != std::string::npos;
            EXPECT_EQ(shown, works_in(o.where, place)) << o.flag;
        }
        EXPECT_NE(options_help(80, o.where == Where::serve_only ? Place::serve : Place::run).find(o.variable),
                  std::string::npos);
    }
}

// The default that help tells is the one of the Config.
TEST(Options, DefaultsInHelpAreTheDefaults) {
    const Config fresh;
    for (const Option& o : options()) {
        const std::string value = o.get(fresh);
        const std::string shown = value.empty()             ? "none"
                                  : o.value_name == nullptr ? (value == "1" ? "on" : "off")
                                                            : value;
        EXPECT_EQ(o.default_text, shown) << o.flag;
    }
}

// What get() shows, set() takes, and shows again.
TEST(Options, AValueGoesRoundTheTable) {
    const std::map<std::string, std::vector<std::string>> values{
        {"--cache-mb", {"auto", "7", "0.5", "8192"}},
        {"--ram", {"auto", "8192", "0.5"}},
        {"--cache-floor-mb", {"7", "0.5"}},
        {"--cache-ceil-mb", {"8192"}},
        {"--cache-policy", {"reuse", "frequency", "lru"}},
        {"--profile", {"off", "auto", "/p/m.profile"}},
        {"--io-threads", {"1", "64"}},
        {"--io-engine", {"auto", "io_uring", "pread", "mmap"}},
        {"--no-odirect", {"1", "0"}},
        {"--no-history", {"1", "0"}},
        {"--mirror", {"/mnt/b/m.gguf", "a:b"}},
        {"--overlap", {"1", "0"}},
        {"--no-overlap", {"1", "0"}},
        {"--wave", {"auto", "1", "64"}},
        {"--predict-log", {"1", "0"}},
        {"--predict-model", {"m.gate"}},
        {"--prefill-mode", {"auto", "macro", "micro"}},
        {"--prefetch", {"0", "1", "64", "auto"}},
        {"--predict-prefetch", {"on", "off", "auto"}},
        {"--predict-spec-max", {"0", "2", "64"}},
        {"--route-ahead", {"0", "1", "64"}},
        {"--route-ahead-router", {"8-bit", "full"}},
        {"--route-ahead-weights", {"router", "predicted"}},
        {"--store", {"auto", "gguf", "/packs/m.gguf.sluice"}},
        {"--verify-reads", {"always", "once", "never"}},
        {"--dense-weights", {"anon", "warm", "mmap"}},
        {"--drop-cold-experts", {"0", "0.5", "1024"}},
        {"--n-expert-used", {"0", "4"}},
        {"--expert-substitute", {"0", "0.25", "1"}},
        {"--deterministic", {"1", "0"}},
        {"--record", {"a file.jsonl"}},
        {"--csv", {"-x.csv"}},
        {"--route-trace", {"r"}},
        {"--route-features", {"f"}},
        {"--route-features-max", {"1", "2048"}},
        {"--io-trace", {"/tmp/i"}},
        {"--compute-trace", {"c"}},
        {"--compute-trace-layers", {"l"}},
        {"--token-trace", {"t"}},
        {"--token-trace-at", {"0", "100"}},
        {"--progress", {"1", "0"}},
        {"--live", {"1", "0"}},
        {"--metrics-port", {"1", "65535"}},
        {"--sluice-log", {"error", "warn", "info", "debug"}},
    };
    for (const Option& o : options()) {
        const auto it = values.find(o.flag);
        ASSERT_NE(it, values.end()) << o.flag << " has no value in this test";
        for (const std::string& text : it->second) {
            Config config;
            ASSERT_TRUE(o.set(config, text).ok()) << o.flag << " " << text;
            EXPECT_EQ(o.get(config), text) << o.flag;
            // As plan prints it.
            std::vector<std::string> flags = as_flags(config);
            Config again;
            EXPECT_TRUE(take_options(again, flags, o.where == Where::serve_only ? Place::serve : Place::run).ok());
            EXPECT_TRUE(flags.empty()) << o.flag << " " << text << " leaves " << flags.front();
            for (const Option& any : options()) EXPECT_EQ(any.get(again), any.get(config)) << any.flag;
        }
    }
    EXPECT_TRUE(as_flags(Config()).empty());
}

TEST(Options, AnOutputIsNoFileOfTheRestOfTheCommandLine) {
    Config config;
    config.csv = "story.txt";
    const auto checked = [&](std::vector<std::string> arguments) { return check_outputs(config, arguments); };
    EXPECT_NE(checked({"-f", "story.txt"}).message().find("give it a file of its own"), std::string::npos);
    EXPECT_FALSE(checked({"-n", "4", "--log-file", "story.txt"}).ok());
    EXPECT_TRUE(checked({"-p", "story.txt", "-f", "other.txt"}).ok()) << "a prompt is no file";
    EXPECT_TRUE(checked({"-f"}).ok());
}

TEST(Options, WhatIsReadIsNotWrittenUnderAnotherNameEither) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "sluice-options-links";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "gate") << "x";
    std::filesystem::create_hard_link(folder / "gate", folder / "link");
    Config config;
    config.predict_log = true;
    config.predict_model = (folder / "gate").string();
    config.record = (folder / "link").string();
    EXPECT_NE(validate(config).message().find("is read, and an output"), std::string::npos)
        << validate(config).message();
    config.record = (folder / "new").string();
    EXPECT_TRUE(validate(config).ok()) << validate(config).message();
    config.csv = (folder / "link").string();
    config.record = (folder / "gate").string();
    config.predict_log = false;
    config.predict_model.clear();
    EXPECT_NE(validate(config).message().find("two outputs"), std::string::npos);
    std::filesystem::remove_all(folder);
}

// A switch that may be given a word takes the next argument if that is no flag.
TEST(Options, ASwitchMayBeGivenAWord) {
    const auto given = [](std::vector<std::string> arguments, std::vector<std::string> rest = {}) {
        Config config;
        EXPECT_TRUE(take_options(config, arguments, Place::run).ok());
        EXPECT_EQ(arguments, rest);
        return find_option("--predict-prefetch")->get(config);
    };
    EXPECT_EQ(given({"--predict-prefetch"}), "on");
    EXPECT_EQ(given({"--predict-prefetch", "auto"}), "auto");
    EXPECT_EQ(given({"--predict-prefetch", "off"}), "off");
    EXPECT_EQ(given({"--predict-prefetch=auto"}), "auto");
    EXPECT_EQ(given({"--predict-prefetch", "-n", "4"}, {"-n", "4"}), "on");
    EXPECT_EQ(given({"--predict-prefetch", "auto", "--predict-prefetch"}), "on") << "what stands later counts";
    EXPECT_EQ(given({"--prefetch", "auto", "--prefetch", "0", "--predict-prefetch", "auto"}), "auto");
    Config config;
    std::vector<std::string> wrong{"--predict-prefetch=sometimes"};
    const Status s = take_options(config, wrong, Place::run);
    EXPECT_NE(s.message().find("one of on, off, auto"), std::string::npos) << s.message();
    wrong = {"--predict-prefetch", "sometimes"};
    const Status apart = take_options(config, wrong, Place::run);
    EXPECT_NE(apart.message().find("--predict-prefetch"), std::string::npos) << apart.message();
    EXPECT_NE(apart.message().find("one of on, off, auto"), std::string::npos) << apart.message();
    std::vector<std::string> off{"--prefetch", "2", "--prefetch", "off"};
    ASSERT_TRUE(take_options(config, off, Place::run).ok());
    EXPECT_EQ(config.prefetch, 0U);
}

TEST(Options, AutoIsOfTheGuessesThatAreOn) {
    Config config;
    std::vector<std::string> a{"--prefetch", "auto"};
    ASSERT_TRUE(take_options(config, a, Place::run).ok());
    EXPECT_EQ(config.prefetch, 1U);
    EXPECT_TRUE(config.prefetch_auto);
    EXPECT_EQ(find_option("--prefetch")->get(config), "auto");
    EXPECT_EQ(find_option("--predict-prefetch")->get(config), "off");
    EXPECT_TRUE(validate(config).ok());
    a = {"--prefetch", "2"};
    ASSERT_TRUE(take_options(config, a, Place::run).ok());
    EXPECT_FALSE(config.prefetch_auto);
    Config none;
    none.prefetch_auto = true;
    EXPECT_FALSE(validate(none).ok());
}

TEST(Options, WhatMeansNothingInAPlaceIsAnError) {
    for (const auto& [flag, place] : std::vector<std::pair<std::string, Place>>{{"--live", Place::serve},
                                                                                {"--progress", Place::tool},
                                                                                {"--metrics-port=9", Place::run},
                                                                                {"--metrics-port=9", Place::library}}) {
        Config config;
        std::vector<std::string> a{flag};
        const Status s = take_options(config, a, place);
        ASSERT_FALSE(s.ok()) << flag;
        EXPECT_NE(s.message().find("no effect"), std::string::npos) << s.message();
    }
    Config config;
    const char* live[] = {"SLUICE_LIVE=1", nullptr};
    const Status refused = read_environment(config, live, Place::library);
    EXPECT_FALSE(refused.ok());
    for (const char* said : {"SLUICE_LIVE", "unset it", "--live", "sluice run"})
        EXPECT_NE(refused.message().find(said), std::string::npos) << refused.message();
    EXPECT_TRUE(read_environment(config, live, Place::run).ok());
    EXPECT_TRUE(check_place(config, Place::run).ok());
    EXPECT_FALSE(check_place(config, Place::library).ok());
}

TEST(Options, CombinationsThatCannotBeAreErrors) {
    Config config;
    config.record = config.csv = "same";
    EXPECT_FALSE(validate(config).ok());
    config.csv = "other";
    EXPECT_TRUE(validate(config).ok());
    config.route_features_bytes = 5 * MiB;
    EXPECT_NE(validate(config).message().find("without --route-features"), std::string::npos);
    config.route_features = "features";
    EXPECT_TRUE(validate(config).ok());
    config.route_features = "other";
    EXPECT_FALSE(validate(config).ok());
    config.route_features = "features";
    config.profile = "other";
    EXPECT_NE(validate(config).message().find("other"), std::string::npos) << "what it knows would be gone";
    config.profile = "a third";
    EXPECT_TRUE(validate(config).ok());
    config.predict_model = "m.gate";
    EXPECT_NE(validate(config).message().find("without --predict-prefetch or --predict-log"), std::string::npos);
    config.predict_log = true;
    EXPECT_TRUE(validate(config).ok());
    config.predict_log = false;
    config.predict_prefetch = true;
    EXPECT_TRUE(validate(config).ok());
    config.predict_model = "other";
    EXPECT_FALSE(validate(config).ok()) << "it would be overwritten";
    config.predict_model = "";
    config.predict_prefetch = false;
    config.token_trace_at = 3;
    EXPECT_FALSE(validate(config).ok());
    config.token_trace = "token";
    EXPECT_TRUE(validate(config).ok());
    config.overlap = false;
    EXPECT_TRUE(validate(config).ok());
    config.wave = 2;
    EXPECT_FALSE(validate(config).ok());
}

TEST(Options, LossyOptionsAreNamedAndChecked) {
    Config config;
    EXPECT_TRUE(lossy_options(config).empty());
    EXPECT_FALSE(has_decode_dials(config));
    config.n_expert_used = 4;
    EXPECT_EQ(lossy_options(config), std::vector<std::string>{"--n-expert-used 4"});
    EXPECT_FALSE(has_decode_dials(config)) << "it holds for prompts too";
    config.drop_cold_experts = 0.5;
    EXPECT_EQ(lossy_options(config), (std::vector<std::string>{"--n-expert-used 4", "--drop-cold-experts 0.5"}));
    EXPECT_TRUE(has_decode_dials(config));
    EXPECT_TRUE(validate(config).ok());
    config.io_threads = 3;
    EXPECT_TRUE(lossy_options(without_lossy(config)).empty());
    EXPECT_EQ(without_lossy(config).io_threads, 3U);
    config.expert_substitute = 1.5;
    EXPECT_FALSE(validate(config).ok());
    config.expert_substitute = 0;

    config.deterministic = true;
    EXPECT_NE(validate(config).message().find("--cache-mb"), std::string::npos);
    config.cache_bytes = 8 * MiB;
    EXPECT_TRUE(validate(config).ok());
    config.drop_cold_experts = 0;
    EXPECT_NE(validate(config).message().find("no effect"), std::string::npos);

    config = Config();
    std::vector<std::string> nothing{"--drop-cold-experts", "-0", "--expert-substitute=-0.0"};
    ASSERT_TRUE(take_options(config, nothing, Place::run).ok());
    EXPECT_TRUE(lossy_options(config).empty()) << "minus nothing is nothing";

    for (const char* text : {"-1", "nan", "inf", "1025", "x", ""}) {
        std::vector<std::string> a{"--drop-cold-experts", text};
        Config fresh;
        EXPECT_FALSE(take_options(fresh, a, Place::run).ok()) << text;
    }
}

// What excludes each other says why.
TEST(Options, GuessesAndCommitmentsExcludeEachOther) {
    const auto refused = [](const Config& config, const char* said) {
        const Status s = validate(config);
        EXPECT_FALSE(s.ok()) << said;
        EXPECT_NE(s.message().find(said), std::string::npos) << s.message();
    };
    Config config;
    config.prefetch = 2;
    EXPECT_TRUE(validate(config).ok());
    config.predict_prefetch = true;
    refused(config, "both guess");
    config.prefetch = 0;
    config.predict_spec_max = 0;
    EXPECT_TRUE(validate(config).ok());
    config.predict_prefetch = false;
    refused(config, "without --predict-prefetch");
    config = {};
    config.route_ahead = 2;
    EXPECT_TRUE(validate(config).ok());
    config.predict_log = true;
    refused(config, "by itself");
    config.predict_log = false;
    config.expert_substitute = 0.1;
    refused(config, "on its way");
    config.expert_substitute = 0;
    EXPECT_EQ(lossy_options(config), (std::vector<std::string>{"--route-ahead 2", "--route-ahead-router 8-bit"}));
    config.route_ahead_router = RouteAheadRouter::full;
    EXPECT_EQ(lossy_options(config), std::vector<std::string>{"--route-ahead 2"});
    EXPECT_TRUE(has_decode_dials(config)) << "prompts know nothing of it";
    config.prefetch = 1;
    refused(config, "guess at the same");
    config.prefetch = 0;
    config.route_ahead_weights = RouteAheadWeights::predicted;
    EXPECT_TRUE(validate(config).ok());
    config.route_ahead = 0;
    refused(config, "--route-ahead-weights predicted has no effect without --route-ahead");
    config.route_ahead_weights = RouteAheadWeights::router;
    refused(config, "--route-ahead-router full has no effect without --route-ahead");
    config.route_ahead_router = RouteAheadRouter::small;
    EXPECT_TRUE(validate(config).ok());
    EXPECT_TRUE(lossy_options(config).empty());
}

TEST(Options, OursAreTakenOutAndTheRestKeepsItsOrder) {
    Config config;
    std::vector<std::string> a{"-m",           "x.gguf",         "--cache-mb",   "1.5", "-p",
                               "--no-odirect", "--io-threads=4", "--no-odirect", "-n",  "3"};
    ASSERT_TRUE(take_options(config, a, Place::run).ok());
    EXPECT_EQ(a, (std::vector<std::string>{"-m", "x.gguf", "-p", "--no-odirect", "-n", "3"}));
    EXPECT_EQ(config.cache_bytes, 1536 * KiB);
    EXPECT_EQ(config.io_threads, 4U);
    EXPECT_FALSE(config.direct_io);
}

TEST(Options, MirrorsAddUp) {
    Config config;
    const char* environment[] = {"SLUICE_MIRROR=a:b", nullptr};
    ASSERT_TRUE(read_environment(config, environment, Place::run).ok());
    std::vector<std::string> a{"--mirror", "c", "--mirror=d"};
    TakenOptions taken;
    ASSERT_TRUE(take_options(config, a, Place::run, &taken).ok());
    EXPECT_EQ(config.mirrors, (std::vector<std::string>{"a", "b", "c", "d"}));
    // A child gets all of them in one variable.
    ASSERT_FALSE(taken.empty());
    EXPECT_EQ(taken.back(), (std::pair<std::string, std::string>("SLUICE_MIRROR", "a:b:c:d")));
    for (const char* bad : {"", ":", "a:", ":a", "a::b"}) EXPECT_FALSE(find_option("--mirror")->set(config, bad).ok());
}

TEST(Options, AfterTwoDashesNothingIsOurs) {
    Config config;
    std::vector<std::string> a{"--", "--cache-mb", "7"};
    ASSERT_TRUE(take_options(config, a, Place::run).ok());
    EXPECT_EQ(a.size(), 3U);
    EXPECT_FALSE(config.cache_bytes.has_value());
}

TEST(Options, WhatDoesNotParseIsAnErrorThatNamesTheOption) {
    const std::vector<std::vector<std::string>> bad{
        {"--cache-mb", "abc"},
        {"--cache-mb", "0"},
        {"--cache-mb", "-5"},
        {"--cache-mb"},
        {"--cache-mb="},
        {"--io-threads", "0"},
        {"--io-threads", "65"},
        {"--io-threads", "4x"},
        {"--io-engine", "fast"},
        {"--dense-weights", "Anon"},
        {"--no-odirect=1"},
        {"--sluice-log", "loud"},
        {"--record", ""},
        {"--metrics-port", "0"},
        {"--metrics-port", "65536"},
        {"--token-trace-at", "-1"},
        {"--wave", "0"},
        {"--prefill-mode", "both"},
        {"--wave", "65"},
        {"--overlap=1"},
        {"--verify-reads", "sometimes"},
    };
    for (std::vector<std::string> a : bad) {
        Config config;
        const std::string flag = a[0].substr(0, a[0].find('='));
        const Status s = take_options(config, a, Place::serve);
        EXPECT_FALSE(s.ok()) << a[0];
        EXPECT_NE(s.message().find(flag), std::string::npos) << s.message();
    }
}

// Whatever is wrong with one of our options is told by us, by its name, and not by whoever gets the rest of the line.
TEST(Options, AWrongValueOfAnyOptionIsOurError) {
    for (const Option& o : options()) {
        const Place place = o.where == Where::run_only     ? Place::run
                            : o.where == Where::serve_only ? Place::serve
                                                           : Place::tool;
        Config any;
        const std::string wrong = o.set(any, "bogus").ok() ? "" : "bogus";  // an option of files takes any name
        const auto refused = [&](std::vector<std::string> line, const std::string& name) {
            Config config;
            const std::string said = fmt::format("{}", fmt::join(line, " "));
            const Status s = take_options(config, line, place);
            ASSERT_FALSE(s.ok()) << said;
            EXPECT_NE(s.message().find(name), std::string::npos) << said << ": " << s.message();
            EXPECT_NE(s.message().find('"' + wrong + '"'), std::string::npos) << said << ": " << s.message();
        };
        refused({"-m", "x", o.flag, wrong, "-n", "4"}, o.flag);
        if (const std::string off = off_flag(o); !off.empty()) refused({off, wrong}, off);
        if (o.value_name != nullptr) refused({fmt::format("{}={}", o.flag, wrong)}, o.flag);
        const std::string entry = fmt::format("{}={}", o.variable, wrong);
        const char* environment[] = {entry.c_str(), nullptr};
        Config config;
        const Status s = read_environment(config, environment, place);
        ASSERT_FALSE(s.ok()) << entry;
        EXPECT_NE(s.message().find(o.variable), std::string::npos) << s.message();
    }
}

TEST(Options, AWordAfterASwitchMayBeAModelsNameWhereSuchAreTaken) {
    for (const char* flag : {"--no-overlap", "--predict-prefetch"}) {
        Config config;
        std::vector<std::string> line{flag, "model.gguf"};
        ASSERT_TRUE(take_options(config, line, Place::run, nullptr, nullptr, true).ok()) << flag;
        EXPECT_EQ(line, std::vector<std::string>{"model.gguf"});
        EXPECT_NE(find_option(flag)->get(config), find_option(flag)->get(Config()));
    }
}

TEST(Options, TheEnvironmentIsReadAndItsMistakesAreErrors) {
    Config config;
    const char* good[] = {"PATH=/bin", "SLUICE_CACHE_MB=8G", "SLUICE_NO_ODIRECT=1", "SLUICE_CACHE_DIR=/x", nullptr};
    ASSERT_TRUE(read_environment(config, good, Place::library).ok());
    EXPECT_EQ(config.cache_bytes, 8 * GiB);
    EXPECT_FALSE(config.direct_io);
    for (const char* entry :
         {"SLUICE_CASH_MB=1", "SLUICE_CACHE_MB=", "SLUICE_CACHE_MB=lots", "SLUICE_NO_ODIRECT=maybe"}) {
        const char* bad[] = {entry, nullptr};
        const Status s = read_environment(config, bad, Place::library);
        EXPECT_FALSE(s.ok()) << entry;
        EXPECT_NE(s.message().find("SLUICE_"), std::string::npos);
    }
}

// Variables, then flags, then what cannot be combined: as a program does it.
Status all(std::vector<const char*> variables, std::vector<std::string> flags, Config& config,
           TakenOptions* taken = nullptr) {
    variables.push_back(nullptr);
    Given given;
    if (Status s = read_environment(config, variables.data(), Place::run, &given); !s.ok()) return s;
    if (Status s = take_options(config, flags, Place::run, taken, &given); !s.ok()) return s;
    return validate(config, given);
}

TEST(Options, MessagesSayWhatWasGivenAndWhere) {
    const auto says = [](std::vector<const char*> variables, std::vector<std::string> flags,
                         const std::string& wanted) {
        Config config;
        const Status s = all(std::move(variables), std::move(flags), config);
        EXPECT_FALSE(s.ok()) << wanted;
        EXPECT_NE(s.message().find(wanted), std::string::npos) << s.message();
    };
    says({"SLUICE_CACHE_MB=1"}, {"--cache-floor-mb", "2"},
         "SLUICE_CACHE_MB=1 is the size of the cache, so --cache-floor-mb 2 has no effect");
    says({"SLUICE_CACHE_CEIL_MB=3"}, {"--cache-mb=1G"},
         "--cache-mb 1G is the size of the cache, so SLUICE_CACHE_CEIL_MB=3");
    says({"SLUICE_CACHE_MB=5"}, {"--cache-mb", "1", "--cache-floor-mb", "2"}, "--cache-mb 1 is the size");
    says({"SLUICE_CACHE_FLOOR_MB=9"}, {"--cache-ceil-mb", "8"},
         "SLUICE_CACHE_FLOOR_MB=9 is more than --cache-ceil-mb 8");
    says({"SLUICE_RAM=2G"}, {"--cache-mb", "3G"}, "SLUICE_RAM=2G is for the whole process");
    says({"SLUICE_CACHE_FLOOR_MB=3G"}, {"--ram", "2G"}, "of SLUICE_CACHE_FLOOR_MB=3G alone");
    says({"SLUICE_OVERLAP=0"}, {"--wave", "3"}, "--wave 3 has no effect with SLUICE_OVERLAP=0");
    says({"SLUICE_NO_OVERLAP=1", "SLUICE_WAVE=3"}, {}, "SLUICE_WAVE=3 has no effect with SLUICE_NO_OVERLAP=1");
    says({"SLUICE_OVERLAP=1"}, {"--no-overlap", "--prefill-mode", "macro"},
         "--prefill-mode macro has no effect with --no-overlap");
    says({"SLUICE_TOKEN_TRACE_AT=3"}, {}, "SLUICE_TOKEN_TRACE_AT=3 has no effect");
    Config config;
    config.overlap = false;
    config.wave = 2;
    EXPECT_NE(validate(config).message().find("--wave 2 has no effect with --no-overlap"), std::string::npos)
        << "a program's own settings are called by their flags";
}

// As llama.cpp's own switches, ours can be turned off on a command line whose environment turns them on.
TEST(Options, EverySwitchHasAnOppositeOnTheCommandLine) {
    for (const Option& o : options()) {
        if (o.value_name != nullptr) {
            EXPECT_EQ(off_flag(o), "") << o.flag;
            continue;
        }
        const std::string off = off_flag(o);
        if (off.empty()) {
            const std::string flag = o.flag;
            EXPECT_TRUE(flag.starts_with("--no-") || find_option("--no-" + flag.substr(2)) != nullptr) << flag;
            continue;
        }
        EXPECT_EQ(find_option(off), nullptr) << off;
        const Place place = o.where == Where::everywhere ? Place::tool : Place::run;
        Config config;
        ASSERT_TRUE(o.set(config, "1").ok());
        std::vector<std::string> line{"-m", "x", off, off};
        TakenOptions taken;
        Given given;
        ASSERT_TRUE(take_options(config, line, place, &taken, &given).ok()) << off;
        EXPECT_EQ(o.get(config), "0") << off;
        EXPECT_EQ(line, (std::vector<std::string>{"-m", "x"}));
        EXPECT_EQ(taken.back(), (std::pair<std::string, std::string>{o.variable, "0"}));
        EXPECT_EQ(given.text(o.flag, config), off);
        for (std::vector<std::string> both : {std::vector<std::string>{o.flag, off}, {off, o.flag}}) {
            const std::string first = both[0];
            Config fresh;
            const Status s = take_options(fresh, both, place);
            ASSERT_FALSE(s.ok()) << off;
            EXPECT_NE(s.message().find("contradicts " + first), std::string::npos) << s.message();
        }
        std::vector<std::string> valued{off + "=1"};
        EXPECT_FALSE(take_options(config, valued, place).ok());
    }
}

TEST(Options, ASwitchAndItsOppositeMustAgreeAndFlagsWinOverVariables) {
    const std::vector<std::vector<const char*>> bad_variables{{"SLUICE_OVERLAP=1", "SLUICE_NO_OVERLAP=1"},
                                                              {"SLUICE_NO_OVERLAP=on", "SLUICE_OVERLAP=on"},
                                                              {"SLUICE_OVERLAP=0", "SLUICE_NO_OVERLAP=0"},
                                                              {"SLUICE_NO_OVERLAP=0", "SLUICE_OVERLAP=off"}};
    for (const auto& variables : bad_variables) {
        Config config;
        const Status s = all(variables, {}, config);
        ASSERT_FALSE(s.ok()) << variables[0];
        EXPECT_NE(s.message().find(fmt::format("contradicts {}", variables[0])), std::string::npos) << s.message();
    }
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{"--overlap", "--no-overlap"}, {"--no-overlap", "--overlap"}}) {
        Config config;
        const Status s = all({}, flags, config);
        ASSERT_FALSE(s.ok()) << flags[0];
        EXPECT_NE(s.message().find("contradicts " + flags[0]), std::string::npos) << s.message();
    }
    for (const auto& [variables, flags, overlap] :
         std::vector<std::tuple<std::vector<const char*>, std::vector<std::string>, bool>>{
             {{"SLUICE_OVERLAP=0", "SLUICE_NO_OVERLAP=1"}, {}, false},
             {{"SLUICE_NO_OVERLAP=0", "SLUICE_OVERLAP=1"}, {}, true},
             {{"SLUICE_NO_OVERLAP=1"}, {"--overlap", "--overlap"}, true},
             {{"SLUICE_OVERLAP=0"}, {"--overlap"}, true},
             {{"SLUICE_OVERLAP=1"}, {"--no-overlap"}, false}}) {
        Config config;
        TakenOptions taken;
        const Status s = all(variables, flags, config, &taken);
        ASSERT_TRUE(s.ok()) << s.message();
        EXPECT_EQ(config.overlap, overlap) << variables[0];
        // A child that gets the variables, and the flags in variables, is told the same.
        std::map<std::string, std::string> environment;
        for (const std::string entry : variables)
            environment[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
        for (const auto& [variable, value] : taken) environment[variable] = value;
        std::vector<std::string> entries;
        for (const auto& [variable, value] : environment) entries.push_back(variable + "=" + value);
        std::vector<const char*> of_child;
        for (const std::string& entry : entries) of_child.push_back(entry.c_str());
        Config child;
        EXPECT_TRUE(all(of_child, {}, child).ok()) << variables[0];
        EXPECT_EQ(child.overlap, overlap) << variables[0];
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

TEST(HostFlags, WhoAsksLlamaCppForEverythingAsksSluiceToo) {
    const auto asks = [](std::vector<std::string> a) { return asks_verbose(a); };
    for (const char* flag : {"-v", "--verbose", "--log-verbose"}) EXPECT_TRUE(asks({"tool", "-m", "x", flag})) << flag;
    for (const char* flag : {"-lv", "--verbosity", "--log-verbosity"}) {
        EXPECT_TRUE(asks({"tool", flag, "5"})) << flag;
        EXPECT_FALSE(asks({"tool", flag, "3"})) << flag;
        EXPECT_FALSE(asks({"tool", flag})) << flag;
    }
    EXPECT_FALSE(asks({"tool", "-m", "x"}));
    EXPECT_FALSE(asks({"tool", "-p", "-v"})) << "the prompt";
    EXPECT_FALSE(own_arguments().empty());

    Config config;
    say_more(config, {});
    EXPECT_EQ(config.verbosity, Verbosity::debug);
    Given given;
    std::vector<std::string> arguments{"--sluice-log", "warn"};
    ASSERT_TRUE(take_options(config, arguments, Place::run, nullptr, &given).ok());
    EXPECT_TRUE(given.has("--sluice-log"));
    EXPECT_FALSE(given.has("--wave"));
    say_more(config, given);
    EXPECT_EQ(config.verbosity, Verbosity::warn) << "what was given stays";
}

}  // namespace
}  // namespace sluice::backend
