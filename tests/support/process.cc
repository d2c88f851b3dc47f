#include "support/process.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.h"

namespace qkv::testing {
namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// In the child: never returns.
[[noreturn]] void become(const std::vector<std::string>& arguments, const RunOptions& options,
                         const std::filesystem::path& streams) {
  const bool ready = std::freopen((streams / "in").c_str(), "r", stdin) != nullptr &&
                     std::freopen((streams / "out").c_str(), "w", stdout) != nullptr &&
                     std::freopen((streams / "err").c_str(), "w", stderr) != nullptr &&
                     (options.folder.empty() || chdir(options.folder.c_str()) == 0);
  if (!ready) _exit(126);
  for (const std::string& variable : options.environment) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Finished run_program(const std::vector<std::string>& arguments, const RunOptions& options) {
  const TempFolder streams;
  streams.write("in", options.input);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) become(arguments, options, streams.path());
  int state = 0;
  pid_t ended = 0;
  for (bool sent = options.signal == 0; !sent && ended == 0;) {
    if (options.signal_when()) {
      kill(child, options.signal);
      sent = true;
    } else {
      usleep(1000);
      ended = waitpid(child, &state, WNOHANG);
    }
  }
  if (ended == 0) ended = waitpid(child, &state, 0);
  if (ended != child) throw std::runtime_error("cannot wait for " + arguments[0]);
  Finished finished;
  finished.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  finished.out = slurp(streams / "out");
  finished.err = slurp(streams / "err");
  return finished;
}

Finished run_qkv(std::vector<std::string> arguments, const RunOptions& options) {
  arguments.insert(arguments.begin(), QKV_BINARY_DIR "/qkv");
  return run_program(arguments, options);
}

bool have_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace qkv::testing
