#include "train/run_folder.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/path.h"

namespace qkv::inline v0::train {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kFormatVersion = 1;

// Files that a killed process was writing aside.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.rfind(".qkv-", 0) == 0 || name.rfind(".partial-", 0) == 0;
}

void differences(const Json& a, const Json& b, const std::string& prefix, std::string& out) {
  for (const auto& [key, value] : a.as_object()) {
    const Json* other = b.find(key);
    if (other != nullptr && value.is_object() && other->is_object()) {
      differences(value, *other, prefix + key + ".", out);
    } else if (other == nullptr || !(*other == value)) {
      out += (out.empty() ? "" : ", ") + prefix + key + " was " + value.dump() + ", is now " +
             (other == nullptr ? "absent" : other->dump());
    }
  }
}

}  // namespace

Json RunFacts::to_json() const {
  Json columns = Json::object();
  columns["text"] = text;
  columns["label"] = label;
  Json out = Json::object();
  out["format_version"] = kFormatVersion;
  out["task"] = task;
  out["columns"] = std::move(columns);
  out["max_length"] = limits.max_length;
  out["truncate"] = limits.truncate;
  out["configuration"] = configuration;
  return out;
}

std::optional<RunFacts> read_run_facts(const fs::path& folder) {
  const fs::path file = folder / kRunFile;
  if (!path_exists(file)) return std::nullopt;
  try {
    const Json json = Json::parse(read_file(file), file.string());
    const std::int64_t format = json.at("format_version").as_int();
    require<ModelError>(format <= kFormatVersion, "run",
                        "{} has format version {}; this program knows up to {}: use a newer one",
                        file.string(), format, kFormatVersion);
    RunFacts facts;
    facts.task = json.at("task").as_string();
    facts.text = json.at("columns").at("text").as_string();
    facts.label = json.at("columns").at("label").as_string();
    facts.limits.max_length = json.at("max_length").as_int();
    facts.limits.truncate = json.at("truncate").as_bool();
    facts.configuration = json.at("configuration");
    return facts;
  } catch (const DataError& error) {
    fail<ModelError>("run", "expected the record of a run in {}: {}", file.string(),
                     error_reason(error));
  }
}

Json comparable_configuration(Json configuration) {
  for (const char* key : {"train", "validation", "test"}) configuration["data"][key] = nullptr;
  configuration["model"]["from"] = nullptr;
  configuration["tokenizer"]["from"] = nullptr;
  for (const char* key : {"log_every", "save_every"}) configuration["train"][key] = nullptr;
  return configuration;
}

RunFolder::RunFolder(fs::path folder, const RunFacts& facts, bool resume)
    : folder_(std::move(folder)) {
  std::error_code error;
  made_ = fs::create_directories(folder_, error);
  require<ArgumentError>(!error && is_folder(folder_), "arguments",
                         "expected a folder to write to at {}, got: {}", folder_.string(),
                         error ? error.message() : "a file");
  lock_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require<IoError>(lock_ >= 0, "run", "cannot open the folder {}: {}", folder_.string(),
                   std::strerror(errno));
  try {
    require<ArgumentError>(
        ::flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK, "arguments",
        "another process is training in {}; wait for it or choose another --out", folder_.string());
    check(facts, resume);
    if (resume) remove_leftovers();
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (made_ && fs::is_empty(folder_, ignored)) fs::remove(folder_, ignored);
  ::close(lock_);
}

void RunFolder::begin(const RunFacts& facts) const {
  if (read_run_facts(folder_)) return;
  write_file_atomic(folder_ / kRunFile, facts.to_json().dump(2) + "\n");
}

void RunFolder::check(const RunFacts& facts, bool resume) const {
  const std::optional<RunFacts> before = read_run_facts(folder_);
  if (!resume) {
    require<ArgumentError>(!before, "arguments",
                           "{} holds a run already: --resume continues it, another --out keeps it",
                           folder_.string());
    require<ArgumentError>(
        fs::is_empty(folder_), "arguments",
        "expected an empty or new folder for --out, got {}, which has files in it",
        folder_.string());
    return;
  }
  if (before) {
    std::string changed;
    differences(comparable_configuration(before->configuration),
                comparable_configuration(facts.configuration), "", changed);
    require<ArgumentError>(changed.empty(), "arguments",
                           "{} is the folder of another run ({}); choose another --out",
                           folder_.string(), changed);
    return;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    require<ArgumentError>(is_leftover(entry.path()), "arguments",
                           "expected the folder of a run or an empty one for --out, got {}, which "
                           "has other files in it",
                           folder_.string());
  }
}

void RunFolder::remove_leftovers() const {
  for (const fs::path& folder : {folder_, checkpoints()}) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) continue;
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (is_leftover(entry.path())) found.push_back(entry.path());
    }
    for (const fs::path& path : found) fs::remove_all(path);
  }
}

}  // namespace qkv::inline v0::train
