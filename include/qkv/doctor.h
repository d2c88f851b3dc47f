// The doctor: is this attention, this model, this folder, this machine right?
//
// Probes call a function on small seeded inputs and compare what comes back with the definition in
// double precision. They need no knowledge of the inside. docs/doctor.md lists the rules.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "qkv/attention.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::doctor {

enum class Severity { kNote, kWarning, kError };
QKV_API const char* severity_name(Severity severity);  // "note", "warning", "error"

using Figure = std::variant<bool, std::int64_t, double, std::string>;
using Evidence = std::vector<std::pair<std::string, Figure>>;

struct Finding {
  std::string id;  // of the rule, stable: "scale"
  Severity severity = Severity::kError;
  std::string where;    // module path, tensor, key, file, or what was called and how
  Evidence evidence;    // the figures that decided
  std::string why;      // why it matters
  std::string remedy;   // what to change
  std::string doc;      // page of the rule: "docs/doctor/scale.md"
  std::string follows;  // id of the earlier error that this one may come from; empty: its own
};

// A rule that was not asked (the function does not take what it needs), or that had too little to
// go by.
struct Omission {
  std::string id, reason;
};

struct QKV_API Report {
  std::vector<Finding> findings;  // errors first, and among them causes before consequences
  std::vector<Omission> skipped, undecided;

  bool ok() const;  // no error
  std::vector<Finding> errors() const;
  std::string to_json(int indent = -1) const;  // {"ok", "findings", "skipped", "undecided"}
  std::string str() const;                     // a table for people
};

// Thrown by a callable's wrapper that stopped waiting for it.
class QKV_API TimeLimitError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown by AttentionUnderTest::backward where the function says in words that it has no gradient.
class QKV_API GradientRefused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Rotary positions that an attention function applies to q and k itself, counted from 0.
struct RopeStatement {
  bool interleaved = false;  // pairs (2c, 2c + 1); else (c, c + D / 2)
  double base = 10000;
};

enum class MaskStyle { kNone, kKeep, kBlock, kAdditive };

// One call. q [B, H, N, D], k and v [B, Hkv, S, D], fp32 or fp64, last dimension contiguous.
struct AttentionCall {
  Tensor q, k, v;
  Tensor mask;  // [B, 1, N, S] in the stated style (kBool or the type of q); undefined: none
  std::optional<bool> causal;          // given where the function takes it
  std::optional<std::int64_t> window;  // likewise
};

struct AttentionAnswer {
  Tensor out;      // [B, H, N, D]
  Tensor weights;  // [B, H, N, S], if the function returns them
  // The library's function that did the work, if the callable handed the whole call to one: its
  // documented conventions (the corner of causal, rows without keys) are then notes, not errors.
  std::string library;
};

// A function under test, and what its author says of it.
struct AttentionUnderTest {
  std::function<AttentionAnswer(const AttentionCall&)> forward;
  // Gradients of sum(out * dout), undefined where none arrives. Not set: gradients are not probed.
  std::function<ops::AttentionGradients(const AttentionCall&, const Tensor& dout)> backward;
  // Peak of memory that a call took beyond its inputs. Not set: memory is not probed.
  std::function<std::int64_t(const AttentionCall&)> peak_bytes;
  // Sets the random numbers that the function may draw. Not set: it may not draw any that count.
  std::function<void(std::uint64_t)> reseed;

  MaskStyle mask = MaskStyle::kNone;
  bool takes_causal = false, takes_window = false;
  bool takes_float64 = true;              // false: only fp32 is passed
  bool always_causal = false;             // without being asked
  std::optional<std::int64_t> window;     // always applied: query i sees keys within window - 1
  std::optional<double> scale;            // stated; default 1 / sqrt(D)
  std::optional<RopeStatement> rope;      // stated
  std::optional<std::int64_t> head_size;  // the only one that it takes
  std::optional<std::int64_t> kv_heads;   // key/value heads of grouped attention
  double time_limit = 10;                 // seconds for one call
};

// Never throws for what the function does: that becomes a finding. ArgumentError for a description
// that makes no sense.
QKV_API Report check_attention(const AttentionUnderTest& attention);

// ids and attention_mask are [B, N] int64, 1 = real.
struct ModelCall {
  Tensor ids, attention_mask;
};

struct ModelUnderTest {
  std::function<Tensor(const ModelCall&)> forward;  // to [B, N, width] fp32 or fp64
  // The same through a cache: chunks of the sequence in order, joined again. Not set: not probed.
  std::function<Tensor(const ModelCall&, const std::vector<std::int64_t>& chunks)> cached;
  // Names of parameters that the output depends on and that get no gradient. Not set: not probed.
  std::function<std::vector<std::string>(const ModelCall&)> without_gradient;
  // Attention weights [B, H, N, N] of each layer. Not set: not probed.
  std::function<std::vector<Tensor>(const ModelCall&)> attention;
  // forward by the same weights in fp64. Not set: not probed.
  std::function<Tensor(const ModelCall&)> widened;
  // When all parameters move by small steps of a line: mean second difference of the output over
  // its mean change. A smooth function gives next to nothing, rounding inside much. Not set: not
  // probed.
  std::function<double(const ModelCall&)> roughness;
  std::function<void(std::uint64_t)> reseed;

  std::int64_t vocab_size = 0, max_length = 0;
  std::optional<bool> causal;  // true: no token may see later ones; nothing: not probed
  bool takes_padding = true;   // false: batches are of equal lengths, the mask is all ones
  double time_limit = 10;
};

// As check_attention. Needs vocab_size >= 4 and max_length >= 4.
QKV_API Report check_model(const ModelUnderTest& model);

// A model folder: its files, and, where the engine knows the model, probes of its forward pass.
// ArgumentError if there is nothing at the path.
QKV_API Report check_path(const std::filesystem::path& path);

// Every kernel that this processor can run against the reference, on this processor.
QKV_API Report check_machine();

// One rule of the doctor.
struct Rule {
  const char* id;
  const char* title;    // one line
  const char* symptom;  // what a user sees
  const char* why;
  const char* remedy;
};
QKV_API std::span<const Rule> rules();
QKV_API const Rule& find_rule(const std::string& id);  // ArgumentError naming the nearest one

}  // namespace qkv::inline v0::doctor
