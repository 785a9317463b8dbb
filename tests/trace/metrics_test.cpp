#include "trace/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "tests/trace/support.h"

namespace sluice::trace {
namespace {

struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
};

// A strict reader of the text format 0.0.4. What it does not like it says, with the line.
class Exposed {
  public:
    explicit Exposed(const std::string& text) {
        if (!text.empty() && text.back() != '\n') complain("no newline at the end", text);
        std::istringstream in(text);
        for (std::string line; std::getline(in, line);) take(line);
        for (const auto& [family, type] : types_) {
            if (!used_.contains(family)) complain("a family without samples", family);
            if (type == "counter" && !family.ends_with("_total")) complain("a counter's name", family);
        }
    }
    [[nodiscard]] const std::vector<Sample>& samples() const { return samples_; }
    [[nodiscard]] std::optional<double> at(const std::string& name,
                                           const std::map<std::string, std::string>& labels) const {
        for (const Sample& s : samples_) {
            if (s.name == name && s.labels == labels) return s.value;
        }
        return std::nullopt;
    }
    [[nodiscard]] std::string type(const std::string& family) const {
        return types_.contains(family) ? types_.at(family) : "";
    }

  private:
    static void complain(const char* what, const std::string& where) { ADD_FAILURE() << what << ": " << where; }
    static bool is_name(const std::string& s) {
        if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0])) != 0) return false;
        return s.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:") ==
               std::string::npos;
    }
    void take(const std::string& line) {
        if (line.starts_with("# HELP ")) {
            family_ = line.substr(7, line.find(' ', 7) - 7);
            if (!helps_.insert(family_).second) complain("a second HELP", line);
        } else if (line.starts_with("# TYPE ")) {
            const size_t blank = line.find(' ', 7);
            if (line.substr(7, blank - 7) != family_) complain("TYPE of another family", line);
            const std::string type = line.substr(blank + 1);
            if (!std::set<std::string>{"counter", "gauge", "histogram"}.contains(type)) complain("type", line);
            if (!types_.emplace(family_, type).second) complain("a second TYPE", line);
        } else {
            sample(line);
        }
    }
    void sample(const std::string& line) {
        Sample s;
        size_t at = line.find_first_of("{ ");
        if (at == std::string::npos) return complain("no value", line);
        s.name = line.substr(0, at);
        if (!is_name(s.name)) complain("name", line);
        std::string family = s.name;
        if (type(family_) == "histogram") {
            for (const char* suffix : {"_bucket", "_sum", "_count"}) {
                if (family.ends_with(suffix)) family = family.substr(0, family.size() - std::string(suffix).size());
            }
        }
        if (family != family_ || !types_.contains(family)) complain("outside its family", line);
        used_.insert(family);
        if (line[at] == '{') {
            ++at;
            while (true) {
                const size_t equals = line.find("=\"", at);
                if (equals == std::string::npos) return complain("labels", line);
                const std::string label = line.substr(at, equals - at);
                if (!is_name(label) || label.starts_with("__")) complain("label", line);
                std::string value;
                for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
                    if (line[at] == '\\') {
                        if (++at >= line.size()) return complain("escape", line);
                        if (line[at] != 'n' && line[at] != '\\' && line[at] != '"') complain("escape", line);
                        value += line[at] == 'n' ? '\n' : line[at];
                    } else {
                        value += line[at];
                    }
                }
                if (!s.labels.emplace(label, value).second) complain("a second label", line);
                if (++at >= line.size()) return complain("labels", line);
                if (line[at] == ',') {
                    ++at;
                    continue;
                }
                if (line[at] != '}') return complain("labels", line);
                ++at;
                break;
            }
        }
        if (at >= line.size() || line[at] != ' ') return complain("no blank before the value", line);
        const std::string number = line.substr(at + 1);
        size_t read = 0;
        s.value = std::stod(number, &read);
        if (read != number.size() || !std::isfinite(s.value)) complain("value", line);
        if (at_same(s)) complain("the same sample again", line);
        samples_.push_back(std::move(s));
    }
    [[nodiscard]] bool at_same(const Sample& s) const { return at(s.name, s.labels).has_value(); }

    std::vector<Sample> samples_;
    std::map<std::string, std::string> types_;
    std::set<std::string> helps_, used_;
    std::string family_;
};

TEST(Metrics, Golden) {
    const Record record = golden_record();
    const std::string text = metrics_text(record.book);
    expect_golden("golden.prom", text);
    const Exposed exposed(text);
    EXPECT_EQ(exposed.at("sluice_output_tokens_total", {{"phase", "decode"}}), 5);
    EXPECT_FALSE(exposed.at("sluice_output_tokens_total", {{"phase", "prefill"}}).has_value());
    EXPECT_EQ(exposed.at("sluice_rss_bytes", {}), 56000000);
    EXPECT_EQ(exposed.type("sluice_rss_bytes"), "gauge");
}

TEST(Metrics, PartsSumToTheWall) {
    const Exposed exposed(metrics_text(golden_record().book));
    for (const std::string phase : {"prefill", "decode"}) {
        double sum = 0;
        for (const Sample& s : exposed.samples()) {
            if (s.name == "sluice_part_seconds_total" && s.labels.at("phase") == phase) sum += s.value;
        }
        EXPECT_NEAR(sum, exposed.at("sluice_wall_seconds_total", {{"phase", phase}}).value(), 1e-9);
    }
}

TEST(Metrics, TheHistogramIsCumulativeAndExact) {
    Random random(13);
    Book book;
    std::vector<Nanos> values(5000);
    Totals& decode = book.of(Phase::decode);
    decode.rows = 1;
    Nanos sum = 0;
    for (Nanos& v : values) {
        v = static_cast<Nanos>(random.next() >> (64U - 1U - random.below(36)));
        decode.reads.add(v);
        sum += v;
    }
    const Exposed exposed(metrics_text(book));
    EXPECT_EQ(exposed.type("sluice_read_latency_seconds"), "histogram");
    double before = -1, last_bound = 0;
    int buckets = 0;
    for (const Sample& s : exposed.samples()) {
        if (s.name != "sluice_read_latency_seconds_bucket") continue;
        ++buckets;
        const std::string le = s.labels.at("le");
        const double bound = le == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(le);
        EXPECT_GT(bound, last_bound);
        EXPECT_GE(s.value, before);
        const auto expected = std::count_if(values.begin(), values.end(), [&](Nanos v) {
            return static_cast<double>(v) * 1e-9 <= bound * (1 + 1e-12);
        });
        EXPECT_EQ(s.value, static_cast<double>(expected)) << le;
        before = s.value;
        last_bound = bound;
    }
    EXPECT_EQ(buckets, 22);
    EXPECT_EQ(exposed.at("sluice_read_latency_seconds_count", {{"phase", "decode"}}), 5000);
    EXPECT_NEAR(exposed.at("sluice_read_latency_seconds_sum", {{"phase", "decode"}}).value(),
                static_cast<double>(sum) * 1e-9, 1e-6);
}

TEST(Metrics, WithoutASumThereIsNoHistogram) {
    Record record = golden_record();
    Histogram& reads = record.book.of(Phase::decode).reads;
    reads.note_sum(Measure());
    const Exposed exposed(metrics_text(record.book));
    EXPECT_EQ(exposed.type("sluice_read_latency_seconds"), "");
    EXPECT_GT(exposed.at("sluice_read_latency_quantile_seconds", {{"phase", "decode"}, {"quantile", "0.99"}}).value(),
              0);
}

TEST(Metrics, NothingMeasuredIsNoLine) {
    Book book;
    const Exposed exposed(metrics_text(book));
    for (const Sample& s : exposed.samples()) EXPECT_EQ(s.name, "sluice_rows_total");
    book.of(Phase::decode).add(Row());
    const Exposed after(metrics_text(book));
    EXPECT_EQ(after.samples().size(), exposed.samples().size());
}

TEST(Metrics, AnyNameOfAModelIsALabel) {
    Book book;
    const std::string name = "a\\b\"c\nd\xff,}=";
    book.models.push_back({{"name", name}, {"arch", "x"}});
    book.models.push_back({{"name", name}, {"arch", "x"}});  // the same again
    book.caches.push_back({{"model", 1}, {"bytes", 5}});
    book.caches.push_back({{"model", 1}, {"bytes", 7}});
    book.caches.push_back({{"model", INT64_MAX}, {"bytes", 7}});
    book.caches.push_back({{"model", "odd"}, {"bytes", nullptr}});
    const Exposed exposed(metrics_text(book));
    const std::string shown = "a\\b\"c\nd\xEF\xBF\xBD,}=";
    EXPECT_EQ(exposed.at("sluice_model_info", {{"model", shown}, {"number", "0"}, {"arch", "x"}, {"digest", ""}}), 1);
    EXPECT_EQ(exposed.at("sluice_model_cache_bytes", {{"model", shown}, {"number", "1"}}), 7);
}

TEST(Metrics, OptionsThatChangeAnswersAreNamed) {
    Book book;
    EXPECT_EQ(metrics_text(book).find("lossy"), std::string::npos);
    book.header = {{"lossy", {"--drop-cold-experts 0.5", 7}}};
    const Exposed exposed(metrics_text(book));
    EXPECT_EQ(exposed.at("sluice_lossy_info", {{"option", "--drop-cold-experts 0.5"}}), 1);
}

TEST(Metrics, HugeTotalsStayNumbers) {
    Book book;
    Row row;
    for (const Column& c : columns()) c.of(row) = INT64_MAX;
    book.of(Phase::decode).add(row);
    const Exposed exposed(metrics_text(book));
    EXPECT_GT(exposed.samples().size(), 50U);
}

TEST(Metrics, FollowsARunAndAnswersAnotherThread) {
    Record record = golden_record();
    record.book.header["lossy"] = {"--n-expert-used 3"};
    Metrics metrics;
    std::atomic<bool> stop = false;
    std::thread server([&] {
        while (!stop.load()) EXPECT_FALSE(metrics.text().empty());
    });
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(replay(record, metrics).ok());
    stop = true;
    server.join();
    const Exposed exposed(metrics.text());
    EXPECT_EQ(exposed.at("sluice_rows_total", {{"phase", "decode"}}), 5);
    EXPECT_EQ(exposed.at("sluice_cache_resident", {}), 48);
    EXPECT_EQ(exposed.at("sluice_lossy_info", {{"option", "--n-expert-used 3"}}), 1);
}

}  // namespace
}  // namespace sluice::trace
