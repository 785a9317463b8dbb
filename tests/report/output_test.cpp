#include "report/output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "report/data.h"
#include "report/page.h"
#include "tests/report/records.h"

namespace sluice::report {
namespace {

class Output : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = testing::TempDir() + "sluice_output_" + std::to_string(::getpid());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override {
        std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
        std::filesystem::remove_all(folder_);
    }
    [[nodiscard]] std::string file(const std::string& name) const { return folder_ + "/" + name; }
    [[nodiscard]] size_t files() const {
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
    }
    // A "browser" that is a shell script.
    std::string script(const std::string& body) const {
        const std::string path = file("browser");
        std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
        ::chmod(path.c_str(), 0755);
        return path;
    }
    std::string folder_;
};

TEST_F(Output, a_file_is_written_whole_and_replaced_whole) {
    ASSERT_TRUE(write_whole(file("a"), "one").ok());
    ASSERT_TRUE(write_whole(file("a"), "two").ok());
    EXPECT_EQ(file_text(file("a")), "two");
    EXPECT_EQ(files(), 1U) << "nothing temporary is left";
    const mode_t mask = ::umask(022);
    ASSERT_TRUE(write_whole(file("b"), "x").ok());
    ::umask(mask);
    struct stat s {};
    ASSERT_EQ(::stat(file("b").c_str(), &s), 0);
    EXPECT_EQ(s.st_mode & 0777U, 0644U) << "as any program's file";
}

TEST_F(Output, a_link_leads_to_the_file) {
    ASSERT_TRUE(write_whole(file("a"), "one").ok());
    std::filesystem::create_symlink(file("a"), file("link"));
    ASSERT_TRUE(write_whole(file("link"), "two").ok());
    EXPECT_EQ(file_text(file("a")), "two");
    EXPECT_TRUE(std::filesystem::is_symlink(file("link")));
}

TEST_F(Output, what_cannot_be_written_is_an_error_in_words) {
    EXPECT_NE(write_whole(file("no/such/place"), "x").message().find("No such file"), std::string::npos);
    EXPECT_NE(write_whole(folder_, "x").message().find("Is a directory"), std::string::npos);
    const Status full = write_whole("/dev/full", "x");
    EXPECT_NE(full.message().find("No space left"), std::string::npos) << full.message();
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/full")) << "a device is not replaced by a file";
    EXPECT_TRUE(write_whole("/dev/null", "x").ok());
    EXPECT_EQ(files(), 0U);
}

TEST_F(Output, a_browser_is_chosen_by_name_or_variable) {
    const std::string browser = script("exit 0");
    const char* before = std::getenv("CHROME");
    const std::string kept = before != nullptr ? before : "";
    const std::string path = std::getenv("PATH");
    ::setenv("CHROME", browser.c_str(), 1);
    EXPECT_EQ(*find_browser(), browser);
    ::setenv("CHROME", file("none").c_str(), 1);
    EXPECT_NE(find_browser().status().message().find("which is no program"), std::string::npos);
    ::unsetenv("CHROME");
    ::setenv("PATH", folder_.c_str(), 1);
    EXPECT_NE(find_browser().status().message().find("apt-get install chromium"), std::string::npos);
    std::filesystem::rename(browser, file("google-chrome"));
    EXPECT_EQ(*find_browser(), file("google-chrome"));
    ::setenv("PATH", path.c_str(), 1);
    if (before != nullptr) ::setenv("CHROME", kept.c_str(), 1);
}

TEST_F(Output, a_browser_that_fails_hangs_or_draws_nothing_is_an_error) {
    const Status failed = draw_png(script("echo no display >&2; exit 3"), "<p>", file("p.png"));
    EXPECT_NE(failed.message().find("failed: no display"), std::string::npos) << failed.message();
    const Status blank = draw_png(script("echo '<html>'"), "<p>", file("p.png"));
    EXPECT_NE(blank.message().find("did not draw the page"), std::string::npos) << blank.message();
    const Status slow = draw_png(script("sleep 100 & sleep 100"), "<p>", file("p.png"), std::chrono::seconds(1));
    EXPECT_NE(slow.message().find("did not finish in 1 s"), std::string::npos) << slow.message();
    const Status nothing = draw_png(script("echo 'data-height=\"77\"'"), "<p>", file("p.png"));
    EXPECT_NE(nothing.message().find("made no picture"), std::string::npos) << nothing.message();
    EXPECT_FALSE(std::filesystem::exists(file("p.png")));
    EXPECT_FALSE(draw_png(file("none"), "<p>", file("p.png")).ok());
}

TEST_F(Output, a_page_becomes_a_picture_of_its_height) {
    const auto browser = find_browser();
    if (!browser.ok()) GTEST_SKIP() << browser.status().message();
    const Status drawn = draw_png(*browser, html_page(report_data(records_of({"complete"}))), file("p.png"));
    ASSERT_TRUE(drawn.ok()) << drawn.message();
    const std::string png = file_text(file("p.png"));
    ASSERT_GT(png.size(), 50'000U);
    const auto number_at = [&](size_t at) {
        uint32_t n = 0;
        for (size_t i = 0; i < 4; ++i) n = n << 8U | static_cast<unsigned char>(png[at + i]);
        return n;
    };
    EXPECT_EQ(number_at(16), 1400U);
    EXPECT_GT(number_at(20), 2000U);
    EXPECT_LT(number_at(20), 10'000U);
}

}  // namespace
}  // namespace sluice::report
