// Running programs from tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace qkv::testing {

struct Finished {
  int status = -1;  // exit status; 128 + signal for a killed program
  std::string out, err;
};

struct RunOptions {
  std::string input;                     // for stdin
  std::vector<std::string> environment;  // "NAME=value", on top of this process's
  std::string folder;                    // to run in; empty: this one
  int signal = 0;                        // sent once, as soon as signal_when() is true
  std::function<bool()> signal_when;
};

// Runs a program, found along PATH, without a shell, and waits for its end.
Finished run_program(const std::vector<std::string>& arguments, const RunOptions& options = {});

// run_program with the qkv program of this build in front.
Finished run_qkv(std::vector<std::string> arguments, const RunOptions& options = {});

// Whether PATH holds the program.
bool have_program(const std::string& name);

}  // namespace qkv::testing
