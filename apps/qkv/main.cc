// The program `qkv VERB ...`: global options, the list of verbs, and errors to exit statuses.
#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <new>

#include "qkv/error.h"
#include "qkv/threads.h"
#include "qkv/version.h"

#include "base/check.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/thread_pool.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

// One line per verb, in the order of `qkv --help`.
constexpr void (*kVerbs[])(CLI::App&, Globals&) = {
    add_train, add_eval, add_classify, add_tokenize, add_inspect, add_lab, add_bench, add_info,
};

constexpr int kDone = 0, kFailed = 1, kRefused = 2;

void add_globals(CLI::App& app, Globals& globals) {
  app.add_option("--threads", globals.threads, "threads to use (wins over QKV_NUM_THREADS)");
  app.add_option("--seed", globals.seed, "seed of every random number");
  app.add_flag("--json", globals.json, "one JSON object a line on stdout");
  app.add_flag_callback(
      "-q,--quiet", [&globals] { globals.verbosity = -1; }, "warnings and errors only");
  app.add_flag_callback(
      "-v,--verbose", [&globals] { globals.verbosity = 1; }, "more messages");
  app.set_version_flag("--version", std::string("qkv ") + version());
}

// Flag, then environment, then the machine. Bad values are refused here, before any work.
void apply_globals(const CLI::App& app, const Globals& globals) {
  if (app.count("--threads") > 0) {
    require<ArgumentError>(globals.threads >= 1 && globals.threads <= 1024, "arguments",
                           "expected --threads from 1 to 1024, got {}", globals.threads);
    set_num_threads(globals.threads);
  }
  active_isa();
  const int cores = cpu_budget().threads;
  if (num_threads() > cores) {
    log_message(LogLevel::kWarning,
                fmt::format("{} threads on {} usable core{}: expect it to be slower than {}",
                            num_threads(), cores, cores == 1 ? "" : "s", cores));
  }
}

// The message for a command line that does not parse; names the verb that was probably meant.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string help =
      chosen.empty() ? "qkv --help" : "qkv " + chosen[0]->get_name() + " --help";
  const std::vector<std::string> rest = app.remaining();
  if (!chosen.empty() || rest.empty())
    return fmt::format("[arguments] {} (see {})", error.what(), help);
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) names.push_back(verb->get_name());
  const std::string nearest = nearest_name(rest[0], names);
  return fmt::format("[arguments] expected a verb, got '{}'{} (see {})", rest[0],
                     nearest.empty() ? "" : "; did you mean " + nearest + "?", help);
}

int exit_status(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kConfig:
      return kRefused;
    case ErrorCode::kInterrupted:
      return 128 + (noted_signal() == 0 ? SIGINT : noted_signal());
    default:
      return kFailed;
  }
}

int run(int argc, char** argv) {
  CLI::App app("qkv trains, evaluates and inspects Transformer models on machines without a GPU.",
               "qkv");
  app.footer(
      "Examples:\n  qkv info\n  qkv train --help\n\nData goes to stdout, messages to stderr. Exit "
      "status: 0 done, "
      "1 failed, 2 refused before any work.");
  app.require_subcommand(1);
  app.fallthrough();
  Globals globals;
  add_globals(app, globals);
  for (const auto add : kVerbs) add(app, globals);
  try {
    // The parser takes a list from its end.
    std::vector<std::string> arguments;
    for (int i = argc - 1; i > 0; --i) arguments.push_back(mark_brackets(argv[i]));
    app.parse(std::move(arguments));
  } catch (const CLI::Success& request) {  // --help, --version
    app.exit(request);
    return kDone;
  } catch (const CLI::ParseError& error) {
    set_up_messages(0);
    log_message(LogLevel::kError, usage_message(app, error));
    return kRefused;
  }
  set_up_messages(globals.verbosity);
  try {
    apply_globals(app, globals);
    return globals.run();
  } catch (const OutputClosed&) {
    return kDone;
  } catch (const Error& error) {
    log_message(LogLevel::kError, error.what());
    return exit_status(error);
  } catch (const std::bad_alloc&) {
    log_message(LogLevel::kError,
                "[memory] the machine has no memory left for this; use a smaller batch or model");
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, fmt::format("[internal] {}", error.what()));
  }
  return kFailed;
}

}  // namespace
}  // namespace qkv::inline v0

int main(int argc, char** argv) { return qkv::run(argc, argv); }
