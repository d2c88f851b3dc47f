// qkv train, eval and classify as a user and a script see them: streams, exit statuses, files,
// signals.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "support/process.h"
#include "support/strings.h"
#include "support/tiny_task.h"

using namespace qkv;
using namespace qkv::testing;
namespace fs = std::filesystem;

namespace {

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> out;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    out.push_back(Json::parse(text.substr(start, end - start)));
    start = end + 1;
  }
  return out;
}

Finished run_train(const TinyTask& task, const fs::path& out, std::vector<std::string> more = {},
                   const RunOptions& options = {}) {
  std::vector<std::string> arguments = {"train", (task.folder / "tiny.toml").string(), "--out",
                                        out.string(), "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_qkv(arguments, options);
}

bool same_file(const fs::path& a, const fs::path& b) { return read_file(a) == read_file(b); }

// A trained model that the tests of one program share.
const fs::path& trained_model() {
  static const TinyTask task(90);
  static const fs::path folder = [] {
    fs::path out = task.folder / "model";
    const Finished run = run_train(task, out, {"--set", "train.epochs=12", "train.accumulate=1"});
    EXPECT_EQ(run.status, 0) << run.err;
    return out;
  }();
  return folder;
}

struct Refused {
  const char* what;
  std::vector<std::string> arguments;  // behind `train tiny.toml --out run`
  int status;
  const char* message;
};

}  // namespace

TEST(TrainProgram, ends_with_one_json_line_of_the_promised_keys) {
  const TinyTask task;
  const Finished run = run_train(task, task.folder / "run");
  ASSERT_EQ(run.status, 0) << run.err;
  const auto lines = json_lines(run.out);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* key :
       {"step", "loss", "metric", "value", "seconds", "tokens_per_second", "peak_bytes"}) {
    EXPECT_TRUE(lines[0].contains(key)) << key;
  }
  EXPECT_EQ(lines[0].at("metric").as_string(), "accuracy");
  EXPECT_FALSE(has(run.err, "\r")) << "no progress line off a terminal";
  EXPECT_TRUE(fs::exists(task.folder / "run" / "model.safetensors"));
  EXPECT_TRUE(fs::is_directory(task.folder / "run" / "checkpoints"));
}

TEST(TrainProgram, equal_runs_give_equal_files_whatever_the_threads_and_the_folder) {
  const TinyTask task;
  ASSERT_EQ(run_train(task, task.folder / "one", {"--threads", "1"}).status, 0);
  ASSERT_EQ(run_train(task, task.folder / "ein Ordner 模型", {"--threads", "2"}).status, 0);
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_TRUE(same_file(task.folder / "one" / name, task.folder / "ein Ordner 模型" / name))
        << name;
  }
}

TEST(TrainProgram, the_seed_flag_wins_over_the_file) {
  const TinyTask task;
  ASSERT_EQ(run_train(task, task.folder / "flag", {"--seed", "9"}).status, 0);
  ASSERT_EQ(run_train(task, task.folder / "set", {"--set", "train.seed=9"}).status, 0);
  ASSERT_EQ(run_train(task, task.folder / "file").status, 0);
  EXPECT_TRUE(same_file(task.folder / "flag" / "model.safetensors",
                        task.folder / "set" / "model.safetensors"));
  EXPECT_FALSE(same_file(task.folder / "flag" / "model.safetensors",
                         task.folder / "file" / "model.safetensors"));
}

TEST(TrainProgram, what_is_refused_before_any_work_ends_in_2) {
  const TinyTask task;
  const std::vector<Refused> cases = {
      {"misspelt key", {"--set", "train.learning_rte=1"}, 2, "did you mean train.learning_rate?"},
      {"heads", {"--set", "model.num_heads=7"}, 2, "d_model"},
      {"not an assignment", {"--set", "train.steps"}, 2, "expected --set section.key=value"},
      {"missing file", {"--set", "data.train=nowhere.csv"}, 2, "found nothing at"},
      {"later feature", {"--set", "train.precision=bf16"}, 2, "not part of this version"},
      {"zero threads", {"--threads", "0"}, 2, "expected --threads from 1"},
      {"stray word", {"other.toml"}, 2, "expected one configuration"},
  };
  for (const Refused& c : cases) {
    const Finished run = run_train(task, task.folder / "run", c.arguments);
    EXPECT_EQ(run.status, c.status) << c.what << ": " << run.err;
    EXPECT_TRUE(has(run.err, c.message)) << c.what << ": " << run.err;
    EXPECT_EQ(run.out, "") << c.what;
    EXPECT_FALSE(fs::exists(task.folder / "run")) << c.what;
  }
  EXPECT_EQ(run_qkv({"train", (task.folder / "nowhere.toml").string()}).status, 2);
  EXPECT_EQ(run_qkv({"train"}).status, 2);
}

TEST(TrainProgram, bad_data_ends_in_1_and_names_file_and_line) {
  struct Case {
    const char* what;
    std::string file, bytes, message;
  };
  const std::string good = tiny_table(20);
  const std::vector<Case> cases = {
      {"empty file", "train.csv", "", "train.csv"},
      {"header only", "train.csv", "text,label\n", "train.csv"},
      {"missing column", "train.csv", "sentence,label\na,x\nb,y\n", "text"},
      {"ragged row", "train.csv", good + "a,b,c\n", "train.csv:22"},
      {"invalid UTF-8", "train.csv", good + "caf\xE9,red\n", "train.csv:22"},
      {"empty text", "train.csv", good + ",red\n", "train.csv:22"},
      {"empty label", "train.csv", good + "a car,\n", "train.csv:22"},
      {"single class", "train.csv", "text,label\na,x\nb,x\n", "at least two different labels"},
      {"unseen label", "validation.csv", "text,label\na,purple\n", "validation.csv:2"},
      {"long text", "train.csv", good + std::string(200, 'a') + ",red\n",
       "train.csv:22: expected at most 64 tokens"},
  };
  for (const Case& c : cases) {
    const TinyTask task;
    task.folder.write(c.file, c.bytes);
    const Finished run = run_train(task, task.folder / "run");
    EXPECT_EQ(run.status, 1) << c.what << ": " << run.err;
    EXPECT_TRUE(has(run.err, c.message)) << c.what << ": " << run.err;
    // Nothing was left behind: a corrected file trains, in the same folder.
    task.folder.write("train.csv", good);
    task.folder.write("validation.csv", good);
    EXPECT_FALSE(fs::exists(task.folder / "run")) << c.what;
    EXPECT_EQ(run_train(task, task.folder / "run").status, 0) << c.what;
  }
}

TEST(TrainProgram, cutting_texts_is_a_choice_and_reported) {
  const TinyTask task;
  task.folder.write("train.csv", tiny_table(19) + std::string(200, 'a') + ",red\n");
  const Finished run = run_train(task, task.folder / "run", {"--set", "data.truncate=true"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.err, "1 of 20 training texts (5.0 %) were cut to 64 tokens")) << run.err;
}

TEST(TrainProgram, folders_of_others_are_refused_and_left_alone) {
  const TinyTask task;
  ASSERT_EQ(run_train(task, task.folder / "run").status, 0);
  const std::string before = read_file(task.folder / "run" / "model.safetensors");
  EXPECT_EQ(run_train(task, task.folder / "run").status, 2);
  const Finished other =
      run_train(task, task.folder / "run", {"--resume", "--set", "train.learning_rate=0.5"});
  EXPECT_EQ(other.status, 2);
  EXPECT_TRUE(has(other.err, "train.learning_rate was 0.005, is now 0.5")) << other.err;
  EXPECT_EQ(read_file(task.folder / "run" / "model.safetensors"), before);
}

TEST(TrainProgram, signals_save_and_leave_and_resume_continues_bit_for_bit) {
  const TinyTask task;
  ASSERT_EQ(run_train(task, task.folder / "whole", {"--set", "train.epochs=20"}).status, 0);
  for (const auto& [signal, status] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    const fs::path run = task.folder / ("signal" + std::to_string(signal));
    RunOptions options;
    options.signal = signal;
    options.signal_when = [&] {
      std::error_code ignored;
      return fs::exists(run / "metrics.jsonl", ignored) &&
             has(read_file(run / "metrics.jsonl"), "\"step\":3,");
    };
    const Finished stopped = run_train(task, run, {"--set", "train.epochs=20"}, options);
    EXPECT_EQ(stopped.status, status) << stopped.err;
    EXPECT_TRUE(has(stopped.err, "--resume continues")) << stopped.err;
    EXPECT_TRUE(json_lines(stopped.out).back().at("interrupted").as_bool());
    const Finished resumed = run_train(task, run, {"--set", "train.epochs=20", "--resume"});
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(trace(run), trace(task.folder / "whole"));
    EXPECT_TRUE(same_file(run / "model.safetensors", task.folder / "whole" / "model.safetensors"));
  }
}

TEST(TrainProgram, b64_killed_at_any_point_the_run_ends_with_the_same_bits) {
  const TinyTask task;
  const std::vector<std::string> often = {"--set", "train.save_every=2", "train.eval_every=3"};
  ASSERT_EQ(run_train(task, task.folder / "whole", often).status, 0);
  const fs::path run = task.folder / "run";
  auto resume = often;
  resume.push_back("--resume");
  int kills = 0;
  for (int delay = 5; delay < 2000;
       delay = delay * 5 / 4 + 1) {  // milliseconds; later each time, so that it ends
    int left = delay;
    RunOptions options;
    options.signal = SIGKILL;
    options.signal_when = [&left] { return left-- <= 0; };
    const Finished part = run_train(task, run, resume, options);
    if (part.status == 0) break;
    ASSERT_EQ(part.status, 128 + SIGKILL) << part.err;
    ++kills;
  }
  EXPECT_GE(kills, 3);
  ASSERT_EQ(run_train(task, run, resume).status, 0);
  EXPECT_EQ(trace(run), trace(task.folder / "whole"));
  EXPECT_TRUE(same_file(run / "model.safetensors", task.folder / "whole" / "model.safetensors"));
  for (const std::string& name : list_folder(run)) EXPECT_NE(name.rfind(".qkv-", 0), 0u) << name;
}

TEST(TrainProgram, b64_a_full_disk_fails_and_keeps_the_last_checkpoint) {
  const TinyTask task;
  ASSERT_EQ(run_train(task, task.folder / "whole").status, 0);
  const fs::path run = task.folder / "run";
  fs::create_directory(run);
  // A limit on file sizes stands for the full disk: the weights fit, the optimiser's state does
  // not.
  const auto weights = fs::file_size(task.folder / "whole" / "model.safetensors");
  const std::string command =
      "ulimit -f " + std::to_string(weights / 1024 + 2) + "; exec \"$0\" \"$@\"";
  const Finished full = run_program({"bash", "-c", command, QKV_BINARY_DIR "/qkv", "train",
                                     (task.folder / "tiny.toml").string(), "--out", run.string()});
  EXPECT_EQ(full.status, 1) << full.err;
  EXPECT_TRUE(has(full.err, "optimizer.safetensors") || has(full.err, "File too large"))
      << full.err;
  for (const std::string& name : list_folder(run / "checkpoints"))
    ADD_FAILURE() << "left behind: " << name;
  ASSERT_EQ(run_train(task, run, {"--resume"}).status, 0);
  EXPECT_TRUE(same_file(run / "model.safetensors", task.folder / "whole" / "model.safetensors"));
}

TEST(TrainProgram, more_threads_than_cores_work_with_a_warning) {
  const TinyTask task;
  const Finished run =
      run_train(task, task.folder / "run", {"--threads", "64", "--set", "train.steps=2"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.err, "64 threads")) << run.err;
}

TEST(TrainProgram, shows_a_progress_line_on_a_terminal_only) {
  if (!have_program("script")) GTEST_SKIP() << "needs script of bsdutils, to have a terminal";
  const TinyTask task;
  const std::string command = std::string(QKV_BINARY_DIR) + "/qkv train " +
                              (task.folder / "tiny.toml").string() +
                              " --set train.epochs=10 --out ";
  const auto on_terminal = [&](const std::string& rest) {
    return run_program({"script", "-qec", command + (task.folder / rest).string(), "/dev/null"})
        .out;
  };
  const std::string loud = on_terminal("loud"), quiet = on_terminal("quiet -q");
  EXPECT_TRUE(has(loud, "tokens/s") && has(loud, " left")) << loud;
  EXPECT_FALSE(has(quiet, "tokens/s")) << quiet;
}

TEST(EvalProgram, prints_one_line_per_metric_and_accuracy_last) {
  const TempFolder folder;
  const fs::path data = folder.write("测试 data.csv", tiny_table(30, 3000));
  const Finished run =
      run_qkv({"eval", trained_model().string(), "--data", data.string(), "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto lines = json_lines(run.out);
  ASSERT_GE(lines.size(), 2u);
  for (const Json& line : lines) {
    EXPECT_TRUE(line.contains("metric") && line.contains("value"));
    EXPECT_EQ(line.at("n").as_int(), 30);
  }
  const Json& accuracy = lines.back();
  EXPECT_EQ(accuracy.at("metric").as_string(), "accuracy");
  EXPECT_GE(accuracy.at("value").as_double(), 0.9);
  std::int64_t right = 0, total = 0, bucketed = 0;
  const auto& counts = accuracy.at("confusion").at("counts").as_array();
  for (std::size_t t = 0; t < counts.size(); ++t) {
    for (std::size_t p = 0; p < counts.size(); ++p) total += counts[t].at(p).as_int();
    right += counts[t].at(t).as_int();
  }
  for (const Json& bucket : accuracy.at("by_length").as_array())
    bucketed += bucket.at("n").as_int();
  EXPECT_EQ(total, 30);
  EXPECT_EQ(bucketed, 30);
  EXPECT_DOUBLE_EQ(accuracy.at("value").as_double(), static_cast<double>(right) / 30);
  const Finished table = run_qkv({"eval", trained_model().string(), "--data", data.string()});
  EXPECT_EQ(table.status, 0);
  EXPECT_TRUE(has(table.out, "macro-F1"));
}

TEST(EvalProgram, takes_the_columns_of_training) {
  TinyTask task;
  std::string table = tiny_table(60);
  table.replace(0, std::string("text,label").size(), "sentence,colour");
  task.folder.write("train.csv", table);
  task.folder.write("validation.csv", table);
  ASSERT_EQ(
      run_train(task, task.folder / "run", {"--set", "data.text=sentence", "data.label=colour"})
          .status,
      0);
  const std::string model = (task.folder / "run").string(),
                    data = (task.folder / "train.csv").string();
  EXPECT_EQ(run_qkv({"eval", model, "--data", data}).status, 0);
  const Finished wrong = run_qkv({"eval", model, "--data", data, "--label", "color"});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_TRUE(has(wrong.err, "colour")) << wrong.err;
}

TEST(EvalProgram, bad_input_is_refused) {
  const TempFolder folder;
  const std::string model = trained_model().string();
  EXPECT_EQ(run_qkv({"eval", model, "--data", (folder / "nowhere.csv").string()}).status, 2);
  EXPECT_EQ(run_qkv({"eval", (folder / "nowhere").string(), "--data",
                     folder.write("a.csv", "text,label\na,red\n").string()})
                .status,
            2);
  EXPECT_EQ(run_qkv({"eval", model}).status, 2);
  const Finished unseen =
      run_qkv({"eval", model, "--data", folder.write("b.csv", "text,label\na,pink\n").string()});
  EXPECT_EQ(unseen.status, 1);
  EXPECT_TRUE(has(unseen.err, "b.csv:2: expected one of the 3 labels seen in training, got 'pink'"))
      << unseen.err;
  const Finished longer =
      run_qkv({"eval", model, "--data",
               folder.write("c.csv", "text,label\n" + std::string(99, 'a') + ",red\n").string()});
  EXPECT_EQ(longer.status, 1);
  EXPECT_TRUE(has(longer.err, "c.csv:2")) << longer.err;
  EXPECT_EQ(run_qkv({"eval", model, "--data", (folder / "c.csv").string(), "--truncate"}).status,
            0);
}

TEST(ClassifyProgram, answers_texts_from_arguments_with_all_scores) {
  const Finished run = run_qkv({"classify", trained_model().string(), "I want the red house 5",
                                "I sold the blue tree 6", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto lines = json_lines(run.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("text").as_string(), "I want the red house 5");
  EXPECT_EQ(lines[0].at("label").as_string(), "red");
  EXPECT_EQ(lines[1].at("label").as_string(), "blue");
  double sum = 0;
  for (const auto& [label, score] : lines[0].at("scores").as_object()) sum += score.as_double();
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(lines[0].at("scores").at("red").as_double(), lines[0].at("score").as_double());
}

TEST(ClassifyProgram, reads_stdin_one_text_a_line_in_order) {
  std::string input;
  for (int i = 0; i < 700; ++i)
    input += i % 2 != 0 ? "I see the green car 1\n" : "I never liked the blue river bank 22\n";
  const Finished run =
      run_qkv({"classify", trained_model().string(), "-", "--json"}, {.input = input});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto lines = json_lines(run.out);
  ASSERT_EQ(lines.size(), 700u);
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(lines[i].at("label").as_string(), i % 2 != 0 ? "green" : "blue");
}

TEST(ClassifyProgram, an_answer_does_not_depend_on_its_neighbours) {
  const std::string text = "I want the red house 5";
  const auto alone =
      json_lines(run_qkv({"classify", trained_model().string(), text, "--json"}).out);
  const auto among = json_lines(
      run_qkv({"classify", trained_model().string(), "I see the green car 1", text, "x", "--json"})
          .out);
  EXPECT_NEAR(alone[0].at("score").as_double(), among[1].at("score").as_double(), 1e-6);
}

TEST(ClassifyProgram, bad_input_is_refused) {
  const std::string model = trained_model().string();
  for (const char* empty : {"", "  "}) {
    const Finished run = run_qkv({"classify", model, empty});
    EXPECT_EQ(run.status, 1);
    EXPECT_TRUE(has(run.err, "expected a text, got an empty one")) << run.err;
  }
  const Finished line = run_qkv({"classify", model, "-"}, {.input = "one\n\nthree\n"});
  EXPECT_EQ(line.status, 1);
  EXPECT_TRUE(has(line.err, "stdin:2")) << line.err;
  EXPECT_EQ(run_qkv({"classify", model, "-"}, {.input = "caf\xE9\n"}).status, 1);
  const Finished longer = run_qkv({"classify", model, std::string(200, 'a')});
  EXPECT_EQ(longer.status, 1);
  EXPECT_TRUE(has(longer.err, "expected at most 64 tokens, got 202")) << longer.err;
  EXPECT_EQ(run_qkv({"classify", model, std::string(200, 'a'), "--truncate"}).status, 0);
  EXPECT_EQ(run_qkv({"classify", "no such folder", "text"}).status, 2);
  EXPECT_EQ(run_qkv({"classify", model, "text", "--top", "0"}).status, 2);
}

TEST(ClassifyProgram, damaged_models_end_in_1) {
  const TempFolder folder;
  const auto copy = [&](const std::string& name) {
    fs::copy(trained_model(), folder / name, fs::copy_options::recursive);
    return folder / name;
  };
  const fs::path nan = copy("nan"), cut = copy("cut"), no_tokenizer = copy("no tokenizer"),
                 run = copy("run");
  std::string bytes = read_file(nan / "model.safetensors");
  bytes.replace(bytes.size() - 4, 4, "\xFF\xFF\xFF\x7F");
  write_file_atomic(nan / "model.safetensors", bytes);
  fs::resize_file(cut / "model.safetensors", bytes.size() / 2);
  fs::remove(no_tokenizer / "tokenizer.json");
  write_file_atomic(run / "run.json", "{\"format_version\":");
  const fs::path config = copy("config"), deep = copy("deep");
  write_file_atomic(config / "config.json", "{\"model_type\":");
  write_file_atomic(deep / "tokenizer.json", std::string(100000, '['));
  for (const auto& [model, message] : std::vector<std::pair<fs::path, std::string>>{
           {nan, "classifier.bias: expected finite numbers"},
           {cut, "the file is cut off"},
           {no_tokenizer, "tokenizer"},
           {run, "run.json: expected valid JSON"},
           {config, "config.json] expected valid JSON"},
           {deep, "nested at most 256 deep"}}) {
    const Finished answer = run_qkv({"classify", model.string(), "I see the red car"});
    EXPECT_EQ(answer.status, 1) << model << answer.err;
    EXPECT_EQ(answer.out, "") << model;
    EXPECT_TRUE(has(answer.err, message)) << answer.err;
  }
}

TEST(TrainProgram, records_stay_records_when_the_streams_are_closed) {
  const TinyTask task;
  const std::string script = "exec \"$0\" train " + (task.folder / "tiny.toml").string() +
                             " --out " + (task.folder / "run").string() + " --json <&- >&- 2>&-";
  EXPECT_EQ(run_program({"sh", "-c", script, QKV_BINARY_DIR "/qkv"}).status,
            1);  // no place to print
  const auto records = json_lines(read_file(task.folder / "run" / "metrics.jsonl"));
  EXPECT_EQ(records.back().at("event").as_string(), "end");
  EXPECT_EQ(run_qkv({"classify", (task.folder / "run").string(), "the red car"}).status, 0);
}

TEST(ClassifyProgram, lines_before_a_bad_one_are_answered) {
  const Finished run =
      run_qkv({"classify", trained_model().string(), "-", "--json"},
              {.input = "I see the red car 1\nthe blue tree 2\n\nthe green car 4\n"});
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(has(run.err, "stdin:3: expected a text, got an empty one")) << run.err;
  const auto lines = json_lines(run.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("text").as_string(), "the blue tree 2");
}

TEST(ClassifyProgram, says_how_many_texts_were_cut) {
  const Finished run = run_qkv({"classify", trained_model().string(), "--truncate", "--", "short",
                                std::string(200, 'a'), "brief"});
  EXPECT_EQ(run.status, 0);
  EXPECT_TRUE(has(run.err, "1 of 3 texts (33.3 %) were cut to 64 tokens")) << run.err;
}

TEST(ClassifyProgram, a_text_of_wide_blanks_is_empty) {
  EXPECT_EQ(run_qkv({"classify", trained_model().string(), "\u3000\u00a0 "}).status, 1);
}

TEST(ClassifyProgram, a_stream_that_cannot_be_read_is_an_error) {
  const Finished run = run_program({"sh", "-c", "exec \"$0\" classify \"$1\" - < /",
                                    QKV_BINARY_DIR "/qkv", trained_model().string()});
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(has(run.err, "[stdin] expected to read line 1")) << run.err;
  const Finished closed = run_program({"sh", "-c", "exec \"$0\" classify \"$1\" - <&-",
                                       QKV_BINARY_DIR "/qkv", trained_model().string()});
  EXPECT_EQ(closed.status, 1);
  EXPECT_TRUE(has(closed.err, "[stdin]")) << closed.err;
}

TEST(InspectProgram, cuts_a_text_as_classify_does) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "I want the red house ";
  const auto answer =
      json_lines(run_qkv({"classify", trained_model().string(), text, "--truncate", "--json"}).out);
  const auto trace =
      json_lines(run_qkv({"inspect", trained_model().string(), text, "--truncate", "--json"}).out);
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace[0].at("tokens").as_array().back().as_string(), "[SEP]");
  EXPECT_NEAR(trace[0].at("score").as_double(), answer[0].at("score").as_double(), 1e-6);
}

TEST(InspectProgram, takes_the_text_from_stdin) {
  const std::string model = trained_model().string();
  const Finished piped = run_qkv({"inspect", model, "-", "--json"}, {.input = "the red car\n"});
  ASSERT_EQ(piped.status, 0) << piped.err;
  EXPECT_EQ(piped.out, run_qkv({"inspect", model, "the red car", "--json"}).out);
  EXPECT_EQ(run_qkv({"inspect", model, "-"}, {.input = ""}).status, 2);
  EXPECT_EQ(run_qkv({"inspect", model, "-"}, {.input = "one\ntwo\n"}).status, 2);
}
