#include "support/tiny_task.h"

#include <fmt/format.h>

#include "base/file.h"

namespace qkv::testing {

std::string tiny_table(int lines, int first) {
  const char* const colours[] = {"red", "green", "blue"};
  const char* const things[] = {"car", "house", "tree", "river bank", "old wooden table"};
  const char* const verbs[] = {"see", "want", "sold", "never liked"};
  std::string out = "text,label\n";
  for (int i = first; i < first + lines; ++i) {
    out += fmt::format("I {} the {} {} {},{}\n", verbs[i % 4], colours[i % 3], things[i % 5], i,
                       colours[i % 3]);
  }
  return out;
}

std::vector<Json> records(const std::filesystem::path& run, const std::string& kind) {
  const std::string text = read_file(run / "metrics.jsonl");
  std::vector<Json> out;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    Json json = Json::parse(text.substr(start, end - start));
    if (json.at("kind").as_string() == kind) out.push_back(std::move(json));
    start = end + 1;
  }
  return out;
}

std::vector<std::string> trace(const std::filesystem::path& run) {
  std::vector<std::string> out;
  for (const Json& r : records(run, "train")) {
    out.push_back(fmt::format("{} {} {} {} {}", r.at("step").as_int(), r.at("loss").dump(),
                              r.at("learning_rate").dump(), r.at("grad_norm").dump(),
                              r.at("tokens").as_int()));
  }
  for (const Json& r : records(run, "eval")) {
    out.push_back(fmt::format("{} {} {}", r.at("step").as_int(), r.at("loss").dump(),
                              r.at("best").as_bool()));
  }
  return out;
}

}  // namespace qkv::testing
