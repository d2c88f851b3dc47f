#include "lab/lab.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/check.h"
#include "base/nearest.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::array kExperiments{
    Experiment{"score-variance",
               "dot products of unit-normal q and k have variance d_k, and dividing by sqrt(d_k) "
               "brings it back to 1",
               run_score_variance},
    Experiment{"scale-gradient",
               "without the factor 1/sqrt(d_k) the softmax saturates and the gradient of the "
               "queries is 81 times smaller at d_k = 64",
               run_scale_gradient},
    Experiment{"mask-zero",
               "a mask that writes 0 into the scores, or multiplies them by 0, leaks; only -inf or "
               "skipping blocks",
               run_mask_zero},
    Experiment{"mask-values",
               "-1e4, -1e9, the lowest finite number and -inf are not the same as a mask's value",
               run_mask_values},
    Experiment{"fused-equals-manual",
               "fused attention equals softmax(q k^T / sqrt(d)) v step by step up to rounding "
               "(1e-15 in float64)",
               run_fused_equals_manual},
    Experiment{"mask-polarity",
               "the two boolean conventions (true = keep, true = block) can be swapped in silence "
               "where masks are bare arrays, and cannot here",
               run_mask_polarity},
    Experiment{"flash-memory",
               "tiles with an online softmax bring attention's memory from O(n^2) to O(n), with "
               "the same result",
               run_flash_memory},
    Experiment{"order-blind", "without positions, permuting the input permutes the output",
               run_order_blind},
    Experiment{"position-shift",
               "the difference of two sinusoidal codes depends on their distance only",
               run_position_shift},
    Experiment{"broken-attention",
               "an attention without scale and with padding scores of 0 passes on short texts and "
               "fails on long ones with several products",
               run_broken_attention},
};

// Columns on a terminal: 2 for the wide characters of East Asian scripts.
std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0xE3) {
      width += 2;
    } else if (byte < 0x80 || byte >= 0xC0) {  // not a character's later bytes
      width += 1;
    }
  }
  return width;
}

std::string render(const Table& table) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    std::size_t width = display_width(table.columns[c]);
    for (const auto& row : table.rows) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string gap(widths[c] - display_width(cells[c]), ' ');
      line += (c == 0 ? "  " : "   ") + (c == 0 ? cells[c] + gap : gap + cells[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(table.columns);
  for (const auto& row : table.rows) add(row);
  return text;
}

const char* holds_text(Holds holds) {
  switch (holds) {
    case Holds::kTrue:
      return "holds";
    case Holds::kFalse:
      return "does not hold";
    default:
      return "undecided";
  }
}

}  // namespace

std::span<const Experiment> experiments() { return kExperiments; }

const Experiment& find_experiment(std::string_view name) {
  const auto it = std::find_if(kExperiments.begin(), kExperiments.end(),
                               [&](const Experiment& e) { return name == e.name; });
  if (it != kExperiments.end()) return *it;
  std::vector<std::string> names;
  for (const Experiment& e : kExperiments) names.emplace_back(e.name);
  const std::string nearest = nearest_name(name, names);
  fail<ArgumentError>("lab", "expected an experiment, got '{}'{}; qkv lab --list names them all",
                      name, nearest.empty() ? "" : " (did you mean " + nearest + "?)");
}

Json to_json(const Experiment& experiment, const Result& result) {
  Json json = Json::object();
  json["name"] = experiment.name;
  json["claim"] = experiment.claim;
  json["holds"] = result.holds == Holds::kUndecided ? Json() : Json(result.holds == Holds::kTrue);
  json["verdict"] = result.verdict;
  json["measured"] = result.measured;
  return json;
}

std::string to_text(const Experiment& experiment, const Result& result) {
  return fmt::format("{}: {}\n\n{}\n  {}: {}\n", experiment.name, experiment.claim,
                     render(result.table), holds_text(result.holds), result.verdict);
}

}  // namespace qkv::inline v0::lab
