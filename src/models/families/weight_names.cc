#include "models/families/weight_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>

#include "base/check.h"

namespace qkv::inline v0 {
namespace {

// Words that wrappers of training frameworks put before every name.
constexpr std::array<std::string_view, 6> kOuter{
    "", "module.", "_orig_mod.", "0.auto_model.", "auto_model.", "0.model."};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Path and last part of a parameter's name: "pooler", "weight".
std::pair<std::string_view, std::string_view> cut_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// The name without its stack and with {} for the layer's number, and that number.
struct Generic {
  std::string name, layer;
};
Generic generic_name(const std::string& name) {
  for (const std::string_view stack : {"encoder.", "decoder."}) {
    if (!starts_with(name, stack)) continue;
    const std::string rest = name.substr(stack.size());
    constexpr std::string_view kLayers = "layers.";
    if (!starts_with(rest, kLayers)) return {rest, ""};
    const std::size_t end = rest.find('.', kLayers.size());
    return {"layers.{}" + rest.substr(end), rest.substr(kLayers.size(), end - kLayers.size())};
  }
  return {name, ""};
}

std::string file_name(std::string_view pattern, const FilePrefix& prefix, std::string_view layer) {
  std::string name;
  if (starts_with(pattern, "^")) {
    name = prefix.trunk;
    pattern.remove_prefix(1);
  } else {
    name = prefix.outer;
  }
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return name + std::string(pattern);
  return fmt::format("{}{}{}{}", name, pattern.substr(0, hole), layer, pattern.substr(hole + 2));
}

struct Rows {
  std::int64_t start, count;
};
Rows rows_of(WeightPart part, const TransformerConfig& c, std::int64_t all) {
  const std::int64_t q = c.num_heads * c.head_size, kv = c.num_kv_heads * c.head_size;
  switch (part) {
    case WeightPart::kWhole:
      return {0, all};
    case WeightPart::kQuery:
      return {0, q};
    case WeightPart::kKey:
      return {q, kv};
    case WeightPart::kValue:
      return {q + kv, kv};
    case WeightPart::kGate:
      return {0, c.d_ff};
    case WeightPart::kUp:
      return {c.d_ff, c.d_ff};
  }
  return {0, all};
}

// Older files call the weights of a norm gamma and beta.
void add_names(std::vector<std::string>& names, const std::string& path, std::string_view kind,
               bool norm) {
  names.push_back(fmt::format("{}.{}", path, kind));
  if (norm) names.push_back(fmt::format("{}.{}", path, kind == "weight" ? "gamma" : "beta"));
}

bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view head = pattern.substr(0, star), rest = pattern.substr(star + 1);
  if (!starts_with(name, head)) return false;
  for (std::size_t i = head.size(); i <= name.size(); ++i)
    if (matches(rest, name.substr(i))) return true;
  return false;
}

bool is_head_rule(const WeightRule& rule) {
  return starts_with(rule.own, "pooler") || starts_with(rule.own, "classifier") ||
         starts_with(rule.own, "head.");
}

}  // namespace

Shape StoredPart::shape() const {
  Shape s = parameter->var.value().shape();
  s[0] = rows;
  if (transposed && s.rank() == 2) std::swap(s[0], s[1]);
  return s;
}

Tensor StoredPart::value() const {
  const Tensor part = parameter->var.value().narrow(0, start, rows);
  return transposed && part.rank() == 2 ? part.transpose(0, 1) : part;
}

std::vector<StoredPart> stored_parts(const WeightMap& map, const TransformerConfig& config,
                                     const nn::Module& module, const FilePrefix& prefix) {
  std::vector<StoredPart> parts;
  module.for_each([&](const nn::Parameter& parameter) {
    const Generic generic = generic_name(parameter.name);
    const auto [path, kind] = cut_name(generic.name);
    const bool norm = path.ends_with("norm");
    const std::size_t first = parts.size();
    for (const WeightRule& rule : map.rules) {
      const bool whole_name = rule.own == generic.name;
      if (!whole_name && rule.own != path) continue;
      if (rule.only && *rule.only != config.head.kind) continue;
      const Rows rows = rows_of(rule.part, config, parameter.var.value().dim(0));
      const auto same = std::find_if(
          parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end(),
          [&](const StoredPart& p) { return p.start == rows.start && p.rows == rows.count; });
      StoredPart& part = same != parts.end() ? *same : parts.emplace_back();
      part.parameter = &parameter;
      part.start = rows.start;
      part.rows = rows.count;
      part.transposed = rule.transposed;
      const std::string name = file_name(rule.file, prefix, generic.layer);
      if (whole_name) {
        part.names.push_back(name);
      } else {
        add_names(part.names, name, kind, norm);
      }
    }
    require<InternalError>(parts.size() > first, "model", "expected a name for {}, got none",
                           parameter.name);
  });
  return parts;
}

FilePrefix find_prefix(const WeightMap& map, const std::function<bool(const std::string&)>& has) {
  for (const std::string_view outer : kOuter) {
    for (const std::string_view trunk : {map.prefix, std::string_view()}) {
      FilePrefix prefix{std::string(outer) + std::string(trunk), std::string(outer)};
      for (const WeightRule& rule : map.rules) {
        if (rule.own == "embeddings.token" && has(file_name(rule.file, prefix, "") + ".weight"))
          return prefix;
      }
      // A file without a token embedding may still hold its norms.
      for (const WeightRule& rule : map.rules) {
        if ((rule.own == "norm" || rule.own == "embeddings.norm") &&
            has(file_name(rule.file, prefix, "") + ".weight"))
          return prefix;
      }
    }
  }
  return {std::string(map.prefix), ""};
}

bool is_head_name(const WeightMap& map, const FilePrefix& prefix, std::string_view name) {
  return std::any_of(map.rules.begin(), map.rules.end(), [&](const WeightRule& rule) {
    if (!is_head_rule(rule)) return false;
    const std::string path = file_name(rule.file, prefix, "");
    return name == path || name == path + ".weight" || name == path + ".bias" ||
           name == path + ".gamma" || name == path + ".beta";
  });
}

bool is_ignored(const WeightMap& map, std::string_view name) {
  return std::any_of(map.ignored.begin(), map.ignored.end(),
                     [&](std::string_view pattern) { return matches(pattern, name); });
}

}  // namespace qkv::inline v0
