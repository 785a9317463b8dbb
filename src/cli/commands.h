// Owns: the commands of the program `sluice` and how each talks to people.
// Keeps: exit codes: 0 well, 1 it failed, 2 the command line is wrong, 130 interrupted. Text goes to standard output,
// everything about the run to standard error.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/options.h"
#include "base/status.h"
#include "sluice/sluice.h"

struct common_params;
namespace sluice::backend {
struct ContextPlan;
}

namespace sluice::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;

struct Command {
    const char* name;
    const char* arguments;  // for the usage line
    const char* summary;    // one line
    const char* help;       // paragraphs
    const char* stock;      // the stock tool whose options it takes; nullptr for none
    int (*run)(std::vector<std::string> arguments);
};
std::span<const Command> commands();
const Command* find_command(const std::string& name);

int run_command(std::vector<std::string> arguments);
int chat_command(std::vector<std::string> arguments);
int serve_command(std::vector<std::string> arguments);
int bench_command(std::vector<std::string> arguments);
int perplexity_command(std::vector<std::string> arguments);
int quality_command(std::vector<std::string> arguments);
int inspect_command(std::vector<std::string> arguments);
int plan_command(std::vector<std::string> arguments);
int doctor_command(std::vector<std::string> arguments);
int probe_command(std::vector<std::string> arguments);
int report_command(std::vector<std::string> arguments);
int verify_command(std::vector<std::string> arguments);
int pack_command(std::vector<std::string> arguments);
int unpack_command(std::vector<std::string> arguments);
int repair_command(std::vector<std::string> arguments);
int predict_command(std::vector<std::string> arguments);
int gate_command(std::vector<std::string> arguments);
int replay_command(std::vector<std::string> arguments);

// One line "sluice: error: ..." on standard error.
int fail(const Status& status, int code);

// "--help" in words, also the source of the man page and the completion.
std::string help_text(const Command& command);
std::string main_help();
std::string man_page();
std::string bash_completion();
std::string options_markdown();

// Which options mean something to a command.
backend::Place place_of(std::string_view command);
// Environment first, then our flags, which are taken out of `arguments`; registers Sluice.
Status start_streaming(std::vector<std::string>& arguments, Config& config, const char* command,
                       backend::TakenOptions* taken = nullptr);
// The model named by -m/--model must be a MoE that llama.cpp knows; settings that would read it all are refused. Says
// what is wrong and returns the exit code, or kOk.
int refuse_arguments(const std::vector<std::string>& arguments);
// --n-expert-used, as llama.cpp wants to hear it: adds --override-kv to the arguments, which name a model's file.
Status pass_on_experts_used(const Config& config, const char* command, std::vector<std::string>& arguments);
// Takes a switch out of the arguments, but not out of the text of a prompt; true if it was there.
bool take_switch(std::vector<std::string>& arguments, std::string_view flag);
// True if the arguments, or llama.cpp's own variable, say which model to load.
bool names_model(const std::vector<std::string>& arguments);
bool asks_help(const std::vector<std::string>& arguments);
// What C calls argv, ended by a null pointer. Points into both strings and arguments.
std::vector<char*> argv_of(std::string& program, std::vector<std::string>& arguments);
// Tokens of one graph at most, by -ub and -c.
uint64_t largest_batch(const common_params& params);
// What a run of these options is going to make of its model, for --ram: with the prompt that is in them, or, where that
// is not known yet or gets `wrapped` in a template, with the largest batch. Nothing is loaded.
Result<backend::ContextPlan> context_plan(const common_params& params, bool wrapped);
// The context of a run whose user named none.
void choose_context(const std::vector<std::string>& arguments, common_params& params);
// llama.cpp's logger prints on a thread of its own and is never waited for, so the last lines of a program that ends
// may be lost: prints what it still has, and takes nothing more.
void finish_log();
// Writes help to standard output; kFailed, in words, if that is closed or full.
int print_help(const std::string& text);

}  // namespace sluice::cli
