// The verbs of the program. Each lives in a file of its own, verb_NAME.cc, and adds itself to the
// parser:
//
//   void add_info(CLI::App& app, Globals& globals) {
//     auto options = std::make_shared<InfoOptions>();
//     CLI::App* verb = app.add_subcommand("info", "shows the machine and what qkv uses of it");
//     verb->add_flag("--measure", options->measure, "measures the peaks");
//     verb->footer("Examples:\n  qkv info --json");
//     verb->callback([options, &globals] {
//       globals.run = [options, &globals] { return run_info(*options, globals); };
//     });
//   }
//
// The callback only sets `run`, which main() calls once the whole command line is known to be good.
// It returns the exit status: 0, or 3 for findings. Everything else is an exception: ArgumentError
// and ConfigError (before any work) end in 2, ErrorCode::kInterrupted in 130 or 143, every other
// error in 1.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace qkv::inline v0 {

struct Globals {
  std::string threads_text, seed_text;  // as given; main() makes the two numbers of them
  int threads = 0;                      // 0: not given; already applied when run is called
  std::optional<std::uint64_t> seed;    // not given: the verb's default
  bool json = false;                    // one JSON object a line on stdout
  int verbosity = 0;                    // -1 quiet (warnings and errors only), 0, 1 verbose
  std::function<int()> run;             // set by the verb that was chosen
};

void add_train(CLI::App& app, Globals& globals);
void add_eval(CLI::App& app, Globals& globals);
void add_classify(CLI::App& app, Globals& globals);
void add_convert(CLI::App& app, Globals& globals);
void add_embed(CLI::App& app, Globals& globals);
void add_fill(CLI::App& app, Globals& globals);
void add_generate(CLI::App& app, Globals& globals);
void add_score(CLI::App& app, Globals& globals);
void add_inspect(CLI::App& app, Globals& globals);
void add_bench(CLI::App& app, Globals& globals);
void add_doctor(CLI::App& app, Globals& globals);
void add_info(CLI::App& app, Globals& globals);
void add_lab(CLI::App& app, Globals& globals);
void add_tokenize(CLI::App& app, Globals& globals);

}  // namespace qkv::inline v0
