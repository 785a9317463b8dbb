// Owns: the one table of streaming options. A flag, its environment variable, its field, its help and its line in the
// documentation all come from the same row.
// Keeps: a text that does not parse is an error that names the option, the text and what would be right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sluice/sluice.h"

namespace sluice::backend {

// Which programs an option means something to.
enum class Place : uint8_t {
    library,  // the plug-in, or a program that embeds libsluice
    tool,     // a stock tool inside `sluice` (chat, bench, perplexity)
    run,      // sluice run
    serve,    // sluice serve
};
enum class Where : uint8_t { everywhere, run_only, serve_only };
bool works_in(Where where, Place place);

struct Option {
    const char* flag;          // "--cache-mb"
    const char* variable;      // "SLUICE_CACHE_MB"
    const char* value_name;    // "N"; nullptr for a switch; "[on|auto]" for one that may be given such a word
    const char* default_text;  // as help shows it
    const char* help;          // one or more sentences
    // `text` is the value ("1" for a switch given as a flag).
    Status (*set)(Config& config, std::string_view text);
    // The value in force, as set() would take it.
    std::string (*get)(const Config& config);
    Where where = Where::everywhere;
};

std::span<const Option> options();
// A stock option whose value may be any text, also one that looks like a flag.
bool takes_free_text(std::string_view flag);
const Option* find_option(std::string_view flag);
// "--no-live" for --live, as llama.cpp has it: turns a switch off that its variable turned on. Empty where the table
// has no such switch, or has its opposite as a row of its own.
std::string off_flag(const Option& option);

// How each option was given, as a message repeats it: "--cache-mb 1", "SLUICE_CACHE_MB=1". What stands later replaces
// what was before.
class Given {
  public:
    void put(const Option& option, std::string text);
    // "--flag value" for what a program has set.
    [[nodiscard]] std::string text(std::string_view flag, const Config& config) const;
    [[nodiscard]] bool has(std::string_view flag) const;

  private:
    std::vector<std::pair<const Option*, std::string>> texts_;
};

// Takes our options out of a command line ("--flag value" and "--flag=value") and leaves the rest, in order, in
// `arguments`. Everything after "--" is left alone, and so are the values of stock options that may be any text.
// `taken`, if given, gets (variable, value) for each, for a process that is to run with the same options. An option
// that means nothing in `place` is an error, and so are a switch and its opposite in one command line. Over variables
// flags win. `bare_words`: the rest may have words that belong to no flag, such as a model's name, so one after a
// switch is not taken for its value.
using TakenOptions = std::vector<std::pair<std::string, std::string>>;
Status take_options(Config& config, std::vector<std::string>& arguments, Place place, TakenOptions* taken = nullptr,
                    Given* given = nullptr, bool bare_words = false);

// `environment` as in environ. A SLUICE_ variable that is neither an option nor one of the set-up's is an error, and so
// is one that means nothing in `place`, and variables of a switch and its opposite that contradict each other.
Status read_environment(Config& config, const char* const* environment, Place place, Given* given = nullptr);

// For a host program that was asked to say all it can: so does Sluice, unless it was told how much.
void say_more(Config& config, const Given& given);

// Checks what single values cannot: ranges and combinations. `given` is for messages.
Status validate(const Config& config, const Given& given = {});

// An output must not be a file that the rest of the command line names, such as that of the prompt (-f), nor the one
// that standard input comes from or standard output goes to.
Status check_outputs(const Config& config, std::span<const std::string> arguments);

// Settings that mean nothing in `place` are errors.
Status check_place(const Config& config, Place place);

// Those options in force that change what a model answers, as "--flag value".
std::vector<std::string> lossy_options(const Config& config);
// The same configuration with all of them off.
Config without_lossy(const Config& config);
// Whether some of them act in decode only: prompts, and so a perplexity over whole batches, know nothing of them.
bool has_decode_dials(const Config& config);

// Words of a command line that makes `config` of the defaults; a switch by whichever of its flags turns it there.
std::vector<std::string> as_flags(const Config& config);

// Whether any file, endpoint or view follows the run.
bool has_outputs(const Config& config);

// The text for --help of a program, wrapped at `width` columns.
std::string options_help(size_t width, Place place);

}  // namespace sluice::backend
