// What verbs share: data on stdout, messages on stderr, items from arguments or stdin, signals.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/log.h"

namespace qkv::inline v0 {

// Makes the folder that results will be written to, before the work. IoError says why it cannot.
void make_folder(const std::filesystem::path& folder, const char* where);

// stdout was closed by the reader (`qkv ... | head`): main() ends quietly.
struct OutputClosed {};

// Writes one line to stdout and flushes it. OutputClosed if the reader is gone; IoError for any
// other failure.
void print_line(std::string_view line);
void print_text(std::string_view text);  // the same without an end of line
void print_json(const Json& value);      // on one line

// Puts something harmless under 0, 1 and 2 where the caller closed them, so that no file of ours is
// opened there and takes in what is meant for the streams. Call it before anything is opened.
void hold_closed_streams();

// Messages go through log_message(); this makes them appear on stderr. Colour only on a terminal
// without NO_COLOR.
void set_up_messages(int verbosity);
bool stderr_is_terminal();

// The parser of the command line takes "[CLS] a, b [SEP]" for a list and cuts it at the commas:
// such arguments are marked before it sees them, and unmarked where a text is taken over.
// ItemReader unmarks by itself.
std::string mark_brackets(std::string argument);
std::string unmark_brackets(std::string argument);

// The arguments of a verb, where "-" stands for the lines of stdin; without arguments stdin is
// read, unless it is a terminal (ArgumentError). Every line is one item, empty ones too; a final
// line without newline counts. IoError if stdin cannot be read.
class ItemReader {
 public:
  ItemReader(std::vector<std::string> arguments, std::string_view verb);
  bool next(std::string& item);  // false: no more
  bool from_stdin() const { return reading_stdin_; }
  // Of the last item, from 1: its line of stdin, or its place among the arguments.
  std::int64_t number() const;
  bool waiting();  // whether a further item of the same kind is there without waiting for it

 private:
  bool next_line(std::string& line);
  void fill();  // reads once; sets ended_ at the end

  std::vector<std::string> arguments_;
  std::size_t index_ = 0;
  bool reading_stdin_ = false;
  std::int64_t line_ = 0;
  std::string buffer_;  // of stdin, from at_ on
  std::size_t at_ = 0;
  bool ended_ = false;
};

// One line on stderr that is overwritten, at most ten times a second; nothing off a terminal or
// with -q.
class ProgressLine {
 public:
  explicit ProgressLine(int verbosity);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  bool due() const;  // whether update() would draw now, to save the formatting
  void update(std::string_view text);
  void clear();

 private:
  bool active_;
  std::chrono::steady_clock::time_point last_{};
};

// From now on SIGINT and SIGTERM are only noted, for a verb that saves before it leaves; a second
// one ends the process.
void note_signals();
int noted_signal();  // 0, SIGINT or SIGTERM

}  // namespace qkv::inline v0
