// The program `qkv VERB ...`: global options, the list of verbs, and errors to exit statuses.
#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>

#include <fmt/format.h>

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
    add_train,    add_eval,    add_classify, add_embed, add_fill,  add_generate, add_score,
    add_tokenize, add_inspect, add_doctor,   add_lab,   add_bench, add_convert,  add_info,
};

constexpr int kDone = 0, kFailed = 1, kRefused = 2;

void add_globals(CLI::App& app, Globals& globals) {
  // Read as text, so that nothing is rounded, wrapped or cut to fit: see number_of().
  app.add_option("--threads", globals.threads_text, "threads to use (wins over QKV_NUM_THREADS)")
      ->type_name("INT");
  app.add_option("--seed", globals.seed_text, "seed of every random number")->type_name("INT");
  app.add_flag("--json", globals.json, "one JSON object a line on stdout");
  app.add_flag_callback(
      "-q,--quiet", [&globals] { globals.verbosity = -1; }, "warnings and errors only");
  app.add_flag_callback(
      "-v,--verbose", [&globals] { globals.verbosity = 1; }, "more messages");
  app.set_version_flag("--version", std::string("qkv ") + version());
}

std::int64_t number_of(const std::string& text, const char* option, std::int64_t least,
                       std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require<ArgumentError>(error == std::errc() && stop == end && value >= least && value <= most,
                         "arguments", "expected {} from {} to {}, got {}", option, least, most,
                         text.empty() ? "nothing" : text);
  return value;
}

// Flag, then environment, then the machine. Bad values are refused here, before any work.
void apply_globals(const CLI::App& app, Globals& globals) {
  constexpr std::int64_t kLargestSeed = std::int64_t{1} << 62;  // as in a configuration
  if (app.count("--threads") > 0) {
    globals.threads = static_cast<int>(number_of(globals.threads_text, "--threads", 1, 1024));
    set_num_threads(globals.threads);
  }
  if (app.count("--seed") > 0)
    globals.seed =
        static_cast<std::uint64_t>(number_of(globals.seed_text, "--seed", 0, kLargestSeed));
  active_isa();
  const int cores = cpu_budget().threads;
  if (num_threads() > cores) {
    log_message(LogLevel::kWarning,
                fmt::format("{} threads on {} usable core{}: expect it to be slower than {}",
                            num_threads(), cores, cores == 1 ? "" : "s", cores));
  }
}

// What was expected and what came, for an argument that no verb or option takes. The nearest known
// name is given with it.
std::string stray_message(const CLI::App& app, const CLI::App* verb, const std::string& stray) {
  std::vector<std::string> names;
  const bool option = verb != nullptr && stray.starts_with("-");
  for (const CLI::App* place : {&app, verb}) {
    if (!option || place == nullptr) continue;
    for (const CLI::Option* known : place->get_options())
      for (const std::string& name : known->get_lnames()) names.push_back("--" + name);
  }
  if (verb == nullptr)
    for (const CLI::App* known : app.get_subcommands(nullptr)) names.push_back(known->get_name());
  const std::string nearest = nearest_name(stray, names);
  const std::string hint = nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
  if (verb == nullptr)
    return fmt::format("expected a verb ({}), got '{}'{}", fmt::join(names, ", "), stray, hint);
  return fmt::format("expected {} of {}, got '{}'{}",
                     option ? "a known option" : "no more arguments", verb->get_name(), stray,
                     hint);
}

// The message for a command line that does not parse.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App* verb = chosen.empty() ? nullptr : chosen[0];
  const std::string help = verb == nullptr ? "qkv --help" : "qkv " + verb->get_name() + " --help";
  const std::vector<std::string> rest = app.remaining(true);
  std::string message = error.what();
  constexpr std::string_view kRequired = " is required";
  if (!rest.empty()) {
    message = stray_message(app, verb, rest[0]);
  } else if (message.ends_with(kRequired)) {
    message.resize(message.size() - kRequired.size());
    message = fmt::format("expected {}, got none", verb == nullptr ? "a verb" : message);
  }
  return fmt::format("[arguments] {} (see {})", message, help);
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
      "1 failed, 2 refused before any work, 3 the doctor found an error.");
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
  } catch (const std::filesystem::filesystem_error& error) {
    log_message(LogLevel::kError, fmt::format("[file] expected to reach '{}', got: {}",
                                              error.path1().string(), error.code().message()));
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, fmt::format("[internal] {}", error.what()));
  }
  return kFailed;
}

}  // namespace
}  // namespace qkv::inline v0

int main(int argc, char** argv) {
  qkv::hold_closed_streams();
  return qkv::run(argc, argv);
}
