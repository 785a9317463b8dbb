// Owns: `sluice quality`: what lossy options cost in quality and what they save, as one table.
#include "engine/quality.h"

#include <arg.h>
#include <common.h>
#include <fmt/ranges.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "backend/device.h"
#include "backend/options.h"
#include "backend/recording.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/same_file.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/number_after.h"
#include "cli/progress_bar.h"
#include "trace/book.h"
#include "trace/record_file.h"

extern char** environ;

namespace sluice::cli {
namespace {

constexpr uint64_t kMostText = 64 * MiB;
constexpr uint64_t kMostTokens = 1U << 20U;

struct Asked {
    std::string file, battery;
    std::vector<std::string> with;
    std::string csv, jsonl;  // files; "-" is standard output
    bool json = false;
    engine::QualityPlan plan;
};

// Options of llama-completion that would change nothing here. The text and the battery go in as they are, and what is
// most likely comes out.
constexpr std::string_view kWithoutEffect[] = {"-p",
                                               "--prompt",
                                               "-sys",
                                               "--system-prompt",
                                               "--chat-template",
                                               "--chat-template-file",
                                               "-cnv",
                                               "--conversation",
                                               "-i",
                                               "--interactive",
                                               "--prompt-cache",
                                               "--in-prefix",
                                               "--in-suffix",
                                               "--n-predict",
                                               "--predict",
                                               "-n",
                                               "-r",
                                               "--reverse-prompt",
                                               "--grammar",
                                               "--grammar-file",
                                               "-j",
                                               "--json-schema",
                                               "--temp",
                                               "--top-k",
                                               "--top-p",
                                               "--min-p",
                                               "-s",
                                               "--seed",
                                               "--chat"};

// Takes this command's own options out of the arguments.
Result<Asked> parse(std::vector<std::string>& arguments) {
    Asked asked;
    std::vector<std::string> rest;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string a = arguments[i];
        const auto value = [&]() -> Result<std::string> {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            return arguments[++i];
        };
        const auto text = [&](std::string& to) {
            auto v = value();
            if (v.ok()) to = std::move(*v);
            return v.status();
        };
        const auto number = [&](int& to, uint64_t least) {
            const auto n = number_after(arguments, i, least, kMostTokens);
            if (n.ok()) to = static_cast<int>(*n);
            return n.status();
        };
        Status s;
        if (a == "--json") {
            asked.json = true;
        } else if (a == "--csv" || a == "--jsonl") {
            if (i + 1 == arguments.size() || arguments[i + 1].empty() ||
                (arguments[i + 1].starts_with('-') && arguments[i + 1] != "-")) {
                s = error(Code::invalid_argument,
                          "{0} needs the name of a file: {0} FILE, or {0} - for standard output", a);
            } else {
                (a == "--csv" ? asked.csv : asked.jsonl) = arguments[++i];
            }
        } else if (a == "--file" || a == "-f") {
            s = text(asked.file);
        } else if (a == "--battery") {
            s = text(asked.battery);
        } else if (a == "--with") {
            asked.with.emplace_back();
            s = text(asked.with.back());
        } else if (a == "--tokens") {
            s = number(asked.plan.scored, 1);
        } else if (a == "--prefix") {
            s = number(asked.plan.prompt, 1);
        } else if (std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), a) != std::end(kWithoutEffect)) {
            s = error(Code::invalid_argument,
                      "{} has no effect in sluice quality: the text of --file and the prompts of the battery go in as "
                      "they are, without a chat template, and answers are greedy",
                      a);
        } else {
            rest.push_back(a);
            if (backend::takes_free_text(a) && i + 1 < arguments.size()) rest.push_back(arguments[++i]);
        }
        if (!s.ok()) return s;
    }
    if ((asked.json ? 1 : 0) + (asked.csv == "-" ? 1 : 0) + (asked.jsonl == "-" ? 1 : 0) > 1)
        return error(Code::invalid_argument,
                     "one of --json, --jsonl - and --csv - can have standard output, not several");
    if (asked.file.empty()) return error(Code::invalid_argument, "which text? give one with --file");
    arguments = std::move(rest);
    return asked;
}

Result<std::string> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text;
    std::vector<char> piece(size_t{64} * KiB);
    while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
        text.append(piece.data(), static_cast<size_t>(file.gcount()));
        if (text.size() > kMostText)
            return error(Code::invalid_argument, "{} is larger than any text this needs", path);
    }
    // A directory opens, too, but gives no bytes.
    if (!file.eof()) return error(Code::not_found, "{} cannot be read", path);
    return text;
}

// One row of the table: a configuration and what it gave.
struct Row {
    Config config;
    std::vector<std::string> lossy;
    std::string name = "lossless";
    std::vector<std::string> stock = {};  // what llama.cpp is told
    engine::Quality found = {};
};

// What a run has that the lossless one has not: the lossy options first, then all others.
std::string name_of(const Config& config, const Config& lossless) {
    std::vector<std::string> words = backend::lossy_options(config);
    const auto named = [&](const backend::Option& o) {
        return std::any_of(words.begin(), words.end(),
                           [&](const std::string& w) { return w == fmt::format("{} {}", o.flag, o.get(config)); });
    };
    for (const backend::Option& o : backend::options()) {
        const std::string value = o.get(config);
        if (value == o.get(lossless) || named(o)) continue;
        if (o.value_name != nullptr) {
            words.push_back(fmt::format("{} {}", o.flag, value));
        } else if (value == "1") {
            words.emplace_back(o.flag);
        } else if (const std::string off = backend::off_flag(o); !off.empty()) {
            words.push_back(off);
        }
    }
    return fmt::format("{}", fmt::join(words, " "));
}

// Each run is one of several, from an empty cache.
Status check_run(const Config& config) {
    if (backend::has_outputs(config)) {
        return error(Code::invalid_argument,
                     "records and traces are of one run, and this command makes several: use sluice run");
    }
    if (config.profile != "off") {
        return error(Code::invalid_argument,
                     "--profile {}: each run would know what the one before it used, and none could be compared with "
                     "another: leave it out",
                     config.profile);
    }
    return {};
}

// The runs that were asked for; the first is without lossy options.
Result<std::vector<Row>> rows_of(const Config& given, const std::vector<std::string>& with) {
    const Config lossless = backend::without_lossy(given);
    std::vector<Row> rows(1);
    rows[0].config = lossless;
    const auto add = [&](const Config& config) {
        rows.push_back({config, backend::lossy_options(config), name_of(config, lossless)});
    };
    if (!backend::lossy_options(given).empty()) add(given);
    for (const std::string& flags : with) {
        std::istringstream words(flags);
        std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
        Config config = lossless;
        backend::Given said;
        if (Status s = backend::take_options(config, arguments, backend::Place::tool, nullptr, &said); !s.ok())
            return s.within("--with");
        if (!arguments.empty())
            return error(Code::invalid_argument, "--with takes streaming options, and \"{}\" is none", arguments[0]);
        if (Status s = backend::validate(config, said); !s.ok()) return s.within("--with");
        if (Status s = check_run(config); !s.ok()) return s.within("--with");
        if (backend::lossy_options(config).empty())
            return error(Code::invalid_argument, "--with \"{}\" turns nothing lossy on", flags);
        add(config);
    }
    if (rows.size() == 1) {
        return error(Code::invalid_argument,
                     "there is nothing to compare: give lossy options, or several sets with --with \"OPTIONS\" each");
    }
    return rows;
}

// What is read is written nowhere: neither by name, nor as `... --file TEXT >> TEXT`.
Status check_outputs(const Asked& asked, const std::vector<std::string>& arguments) {
    std::vector<std::string> read = arguments;  // the model among them
    read.insert(read.end(), {asked.file, asked.battery});
    for (const std::string& out : {asked.csv, asked.jsonl}) {
        if (out.empty() || out == "-") continue;
        if (std::any_of(read.begin(), read.end(), [&](const std::string& r) { return same_file(r, out); }))
            return error(Code::invalid_argument, "{} is read, and an output is to be written to it", out);
    }
    for (const std::string& r : read) {
        if (is_open_as(r, STDOUT_FILENO))
            return error(Code::invalid_argument, "{} is read, and the output is to be written to it", r);
    }
    return {};
}

std::optional<double> ratio(double a, double b) {
    return b > 0 && std::isfinite(a) ? std::optional(a / b) : std::nullopt;
}
std::optional<double> speed(const engine::Quality& q) {
    return ratio(static_cast<double>(q.tokens) * 1e9, static_cast<double>(q.time));
}
std::optional<double> bytes_per_token(const engine::Quality& q) {
    return ratio(static_cast<double>(q.bytes), static_cast<double>(q.tokens));
}

// The columns, for all three forms.
struct Column {
    const char* name;  // in JSON and CSV
    const char* title;
    std::optional<double> (*of)(const Row& row);
    std::string (*shown)(double value);
    bool of_lossless;  // means something for the run without options
};

template <int decimals>
std::string plain(double v) {
    return fmt::format("{:.{}f}", v, decimals);
}
std::string percent(double v) {
    return fmt::format("{:.1f} %", 100 * v);
}

constexpr Column kColumns[] = {
    {"perplexity", "perplexity", [](const Row& r) { return ratio(r.found.perplexity, 1); }, plain<4>, true},
    {"kl_divergence", "KL", [](const Row& r) { return ratio(r.found.divergence, 1); }, plain<5>, false},
    {"kl_divergence_max", "KL max", [](const Row& r) { return ratio(r.found.divergence_max, 1); }, plain<3>, false},
    {"same_top", "same top", [](const Row& r) { return ratio(r.found.same_top, 1); }, percent, false},
    {"tasks_right", "tasks right",
     [](const Row& r) { return r.found.tasks > 0 ? std::optional<double>(r.found.right) : std::nullopt; }, plain<0>,
     true},
    {"answers_same", "same answers",
     [](const Row& r) { return r.found.tasks > 0 ? std::optional<double>(r.found.same_answer) : std::nullopt; },
     plain<0>, false},
    {"dropped_share", "dropped",
     [](const Row& r) { return ratio(static_cast<double>(r.found.dropped), static_cast<double>(r.found.routed)); },
     percent, false},
    {"substituted_share", "substituted",
     [](const Row& r) {
         return r.found.substituted > 0
                    ? ratio(static_cast<double>(r.found.substituted), static_cast<double>(r.found.routed))
                    : std::nullopt;
     },
     percent, false},
    {"bytes_per_token", "read/token", [](const Row& r) { return bytes_per_token(r.found); },
     [](double v) { return human_bytes(static_cast<uint64_t>(v)); }, true},
    {"tokens_per_second", "tok/s", [](const Row& r) { return speed(r.found); }, plain<2>, true},
};

std::optional<double> value_of(const Column& c, const Row& row) {
    if (!c.of_lossless && row.lossy.empty()) return std::nullopt;
    return c.of(row);
}

std::string table(std::span<const Row> rows) {
    std::vector<std::vector<std::string>> cells{{""}};
    for (const Column& c : kColumns) cells[0].emplace_back(c.title);
    for (const Row& row : rows) {
        cells.push_back({row.name});
        for (const Column& c : kColumns) {
            const auto v = value_of(c, row);
            cells.back().push_back(v ? c.shown(*v) : "-");
        }
    }
    std::string out;
    for (const auto& line : cells) {
        for (size_t c = 0; c < line.size(); ++c) {
            size_t width = 0;
            for (const auto& other : cells) width = std::max(width, other[c].size());
            out += c == 0 ? fmt::format("{:<{}}", line[c], width) : fmt::format("  {:>{}}", line[c], width);
        }
        out += '\n';
    }
    const engine::Quality& first = rows[0].found;
    out += fmt::format(
        "\n{} tokens were scored one by one; divergence in nats per token, and agreement, are from the lossless run\n",
        first.scored);
    if (first.tasks > 0) out += fmt::format("{} tasks with known answers, greedy\n", first.tasks);
    return out;
}

std::string csv_head() {
    std::string out = "options";
    for (const Column& c : kColumns) out += fmt::format(",{}", c.name);
    return out + '\n';
}

std::string csv_row(const Row& row) {
    std::string out = row.name;
    for (const Column& c : kColumns) {
        const auto v = value_of(c, row);
        out += v ? fmt::format(",{}", *v) : ",";
    }
    return out + '\n';
}

trace::Json head_json(const std::string& model, const Asked& asked) {
    return {{"sluice_quality", 1},
            {"model", model},
            {"text", asked.file},
            {"battery", asked.battery.empty() ? "built in" : asked.battery},
            {"prompt_tokens", asked.plan.prompt},
            {"scored_tokens", asked.plan.scored},
            {"tasks", asked.plan.battery.size()}};
}

trace::Json run_json(const Row& row) {
    trace::Json run = {{"lossy", row.lossy},
                       {"options", row.name},
                       {"deterministic", row.config.deterministic},
                       {"decode_tokens", row.found.tokens},
                       {"routed", row.found.routed},
                       {"dropped", row.found.dropped},
                       {"substituted", row.found.substituted}};
    for (const Column& c : kColumns) {
        const auto v = value_of(c, row);
        run[c.name] = v ? trace::Json(*v) : trace::Json(nullptr);
    }
    return run;
}

// Where it all goes. Rows for programs are written as they come; a table needs all of them for its widths, and is
// written in the end, whatever that is, unless something else has standard output.
class Output {
  public:
    Output(const Asked& asked, std::string model) : asked_(asked), model_(std::move(model)) {}
    // Before the first run, which may be long.
    int open() {
        for (const auto& [name, file] : {std::pair(&asked_.csv, &csv_), std::pair(&asked_.jsonl, &jsonl_)}) {
            if (name->empty() || *name == "-") continue;
            auto opened = trace::LineFile::open(*name);
            if (!opened.ok())
                return fail(opened.status(), opened.status().code() == Code::invalid_argument ? kUsage : kFailed);
            *file = std::move(*opened);
        }
        return kOk;
    }
    int begin() {
        if (const int code = put(asked_.csv, csv_, csv_head()); code != kOk) return code;
        return put(asked_.jsonl, jsonl_, head_json(model_, asked_).dump() + "\n");
    }
    int row(const Row& row) {
        if (const int code = put(asked_.csv, csv_, csv_row(row)); code != kOk) return code;
        return put(asked_.jsonl, jsonl_, run_json(row).dump() + "\n");
    }
    // `rows`: those that were measured.
    int end(std::span<const Row> rows) {
        if (asked_.csv == "-" || asked_.jsonl == "-" || rows.empty()) return kOk;
        if (!asked_.json) return print_help(table(rows));
        trace::Json out = head_json(model_, asked_);
        out["runs"] = trace::Json::array();
        for (const Row& row : rows) out["runs"].push_back(run_json(row));
        return print_help(out.dump(2) + "\n");
    }

  private:
    using File = std::unique_ptr<trace::LineFile>;
    static int put(const std::string& name, const File& file, const std::string& text) {
        if (file == nullptr) return name == "-" ? print_help(text) : kOk;
        const Status s = file->write(text);
        return s.ok() ? kOk : fail(s, kFailed);
    }
    const Asked& asked_;
    std::string model_;
    File csv_, jsonl_;
};

// Some options ask what is in memory, and find everything there.
void warn_of_room(const Row& row) {
    if (row.found.slots < row.found.experts || !(row.config.drop_cold_experts > 0 || row.config.expert_substitute > 0))
        return;
    log(LogLevel::warn,
        "{}: the cache holds all {} experts, so hardly one is missing and this option hardly acts: its price and its "
        "gain are those of a smaller cache, which --cache-mb sets",
        row.name, row.found.experts);
}

// Loads and runs the model with one row's options.
Status measure(Row& row, engine::QualityRuns& runs, const Asked& asked) {
    std::string why;
    if (!start(row.config, &why)) return error(Code::unsupported, "{}", why);
    std::vector<std::string> arguments = row.stock;
    common_params params;
    params.verbosity = 1;  // errors
    std::string program = "sluice quality";
    std::vector<char*> argv = argv_of(program, arguments);
    if (!common_params_parse(static_cast<int>(argv.size()) - 1, argv.data(), params, LLAMA_EXAMPLE_COMPLETION))
        return error(Code::invalid_argument, "see sluice quality --help");
    const bool sized = std::any_of(row.stock.begin(), row.stock.end(),
                                   [](const std::string& a) { return a == "-c" || a == "--ctx-size"; });
    if (!sized) params.n_ctx = std::max(512, asked.plan.prompt + asked.plan.scored + 1);
    auto found = runs.run(params);
    if (!found.ok()) return found.status();
    row.found = std::move(*found);
    return {};
}

}  // namespace

int quality_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("quality")));
    auto parsed = parse(arguments);
    if (!parsed.ok()) return fail(parsed.status(), kUsage);
    Asked& asked = *parsed;
    if (!names_model(arguments)) return fail(error(Code::invalid_argument, "which model? give it with -m"), kUsage);
    Config config;
    backend::Given given;
    if (Status s = backend::read_environment(config, environ, backend::Place::tool, &given); !s.ok())
        return fail(s, kUsage);
    if (Status s = backend::take_options(config, arguments, backend::Place::tool, nullptr, &given); !s.ok())
        return fail(s, kUsage);
    if (Status s = backend::validate(config, given); !s.ok()) return fail(s, kUsage);
    if (Status s = check_run(config); !s.ok()) return fail(s, kUsage);
    auto rows = rows_of(config, asked.with);
    if (!rows.ok()) return fail(rows.status(), kUsage);
    if (Status s = check_outputs(asked, arguments); !s.ok()) return fail(s, kUsage);
    auto text = read_file(asked.file);
    if (!text.ok()) return fail(text.status(), kUsage);
    asked.plan.text = std::move(*text);
    asked.plan.battery = engine::built_in_battery();
    if (asked.battery == "none") {
        asked.plan.battery.clear();
    } else if (!asked.battery.empty()) {
        const auto tasks = read_file(asked.battery);
        if (!tasks.ok()) return fail(tasks.status(), kUsage);
        auto battery = engine::parse_battery(*tasks, asked.battery);
        if (!battery.ok()) return fail(battery.status(), kUsage);
        asked.plan.battery = std::move(*battery);
    }

    backend::set_host({.place = backend::Place::tool, .program = "sluice quality"});
    {
        Config quiet = (*rows)[0].config;
        std::string why;
        if (!start(quiet, &why)) return fail(error(Code::unsupported, "{}", why), kUsage);
    }
    if (const int code = refuse_arguments(arguments); code != kOk) return code;
    common_init();
    catch_interrupts();
    asked.plan.stop = {[](void*) { return interrupted(); }, nullptr};
    std::string model;
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
        if (arguments[i] == "-m" || arguments[i] == "--model") model = arguments[i + 1];
    }
    // Before the first run, which may be long.
    for (Row& row : *rows) {
        row.stock = arguments;
        if (Status s = pass_on_experts_used(row.config, "quality", row.stock); !s.ok()) return fail(s, kUsage);
        if (model.empty()) continue;  // it is not here yet
        if (const Status s = backend::check_model(model, row.config); !s.ok())
            return fail(row.name.empty() ? s : s.within(row.name),
                        s.code() == Code::invalid_argument ? kUsage : kFailed);
    }
    engine::QualityRuns runs(asked.plan);
    size_t number = 0;
    ProgressBar bar("measuring");
    asked.plan.progress = [&](double part, const std::string& doing) {
        const double all = static_cast<double>(rows->size());
        bar.show((static_cast<double>(number) + part) / all,
                 fmt::format("{} of {}, {}, {}", number + 1, rows->size(), (*rows)[number].name, doing));
    };
    Output output(asked, model);
    if (const int code = output.open(); code != kOk) return code;
    if (const int code = output.begin(); code != kOk) return code;
    for (Row& row : *rows) {
        const Status s = measure(row, runs, asked);
        bar.clear();
        if (!s.ok()) {
            // What was measured is kept.
            if (const int code = output.end(std::span(*rows).first(number)); code != kOk) return code;
            if (interrupted()) {
                std::fprintf(stderr, "sluice: interrupted: %zu of %zu runs were measured\n", number, rows->size());
                return kInterrupted;
            }
            return fail(s, s.code() == Code::invalid_argument ? kUsage : kFailed);
        }
        ++number;
        warn_of_room(row);
        if (const int code = output.row(row); code != kOk) return code;
        if (number < rows->size())
            std::fprintf(stderr, "sluice: %zu of %zu runs measured: %s, perplexity %.4f\n", number, rows->size(),
                         row.name.c_str(), row.found.perplexity);
    }
    return output.end(*rows);
}

}  // namespace sluice::cli
