// Reports as JSON and as text.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "qkv/doctor.h"

#include "base/json.h"
#include "doctor/recorder.h"

namespace qkv::inline v0::doctor {
namespace {

Json figure_json(const Figure& figure) {
  return std::visit([](const auto& value) { return Json(value); }, figure);
}

std::string figure_text(const Figure& figure) {
  if (const auto* number = std::get_if<double>(&figure)) return fmt::format("{:.4g}", *number);
  if (const auto* text = std::get_if<std::string>(&figure)) return *text;
  return figure_json(figure).dump();
}

Json omissions_json(const std::vector<Omission>& omissions) {
  Json list = Json::array();
  for (const Omission& omission : omissions) {
    Json item = Json::object();
    item["id"] = omission.id;
    item["reason"] = omission.reason;
    list.push_back(std::move(item));
  }
  return list;
}

Json finding_json(const Finding& f) {
  Json evidence = Json::object();
  for (const auto& [name, figure] : f.evidence) evidence[name] = figure_json(figure);
  Json item = Json::object();
  item["id"] = f.id;
  item["severity"] = severity_name(f.severity);
  item["where"] = f.where;
  item["evidence"] = std::move(evidence);
  item["why"] = f.why;
  item["remedy"] = f.remedy;
  item["doc"] = f.doc;
  item["follows"] = f.follows.empty() ? Json() : Json(f.follows);
  return item;
}

// Ids with the same reason on one line.
void append_omissions(std::string& out, const char* title, const std::vector<Omission>& list) {
  std::vector<std::pair<std::string, std::string>> lines;  // reason, ids
  for (const Omission& o : list) {
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const auto& line) { return line.first == o.reason; });
    if (same == lines.end()) {
      lines.emplace_back(o.reason, o.id);
    } else {
      same->second += ", " + o.id;
    }
  }
  for (const auto& [reason, ids] : lines) out += fmt::format("{}: {} ({})\n", title, ids, reason);
}

}  // namespace

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    default:
      return "error";
  }
}

bool Report::ok() const {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.severity == Severity::kError; });
}

std::vector<Finding> Report::errors() const {
  std::vector<Finding> out;
  for (const Finding& f : findings)
    if (f.severity == Severity::kError) out.push_back(f);
  return out;
}

std::string Report::to_json(int indent) const {
  Json list = Json::array();
  for (const Finding& f : findings) list.push_back(finding_json(f));
  Json out = Json::object();
  out["ok"] = ok();
  out["findings"] = std::move(list);
  out["skipped"] = omissions_json(skipped);
  out["undecided"] = omissions_json(undecided);
  return out.dump(indent);
}

std::string Report::str() const {
  std::string out;
  for (const Finding& f : findings) {
    out += fmt::format("{:<8} {:<18} {}\n", severity_name(f.severity), f.id, f.where);
    std::string figures;
    for (const auto& [name, figure] : f.evidence)
      figures += fmt::format("{}{} {}", figures.empty() ? "" : ", ", name, figure_text(figure));
    if (!figures.empty()) out += fmt::format("         evidence: {}\n", figures);
    if (!f.follows.empty()) {
      out += fmt::format("         may follow from {}: mend that first\n", f.follows);
      continue;
    }
    out += fmt::format("         why: {}\n         remedy: {}\n         see {}\n", f.why, f.remedy,
                       f.doc);
  }
  append_omissions(out, "undecided", undecided);
  append_omissions(out, "skipped", skipped);
  const auto count = errors().size();
  out += count > 0          ? fmt::format("{} error{}", count, count == 1 ? "" : "s")
         : findings.empty() ? "nothing found"
                            : "no error";
  return out;
}

Finding& Recorder::add(const char* id, Severity severity, std::string where, Evidence evidence) {
  const Rule& rule = find_rule(id);
  Finding finding;
  finding.id = id;
  finding.severity = severity;
  finding.where = std::move(where);
  finding.evidence = std::move(evidence);
  finding.why = rule.why;
  finding.remedy = rule.remedy;
  finding.doc = fmt::format("docs/doctor/{}.md", id);
  if (severity == Severity::kError) {
    if (first_error_.empty()) {
      first_error_ = id;
    } else if (first_error_ != id) {
      finding.follows = first_error_;
    }
  }
  report_.findings.push_back(std::move(finding));
  return report_.findings.back();
}

bool Recorder::has(const std::string& id) const {
  return std::any_of(report_.findings.begin(), report_.findings.end(),
                     [&](const Finding& f) { return f.id == id; });
}

void Recorder::omit(std::vector<Omission>& list, const char* id, std::string reason) {
  const Rule& rule = find_rule(id);
  const auto same = [&](const Omission& o) { return o.id == rule.id && o.reason == reason; };
  if (std::none_of(list.begin(), list.end(), same)) list.push_back({rule.id, std::move(reason)});
}

void Recorder::skip(const char* id, std::string reason) {
  omit(report_.skipped, id, std::move(reason));
}

void Recorder::undecided(const char* id, std::string reason) {
  omit(report_.undecided, id, std::move(reason));
}

void Recorder::merge(Report other) {
  for (Finding& f : other.findings) {
    if (f.severity == Severity::kError && first_error_.empty()) first_error_ = f.id;
    if (f.severity == Severity::kError && f.follows.empty() && f.id != first_error_)
      f.follows = first_error_;
    report_.findings.push_back(std::move(f));
  }
  for (Omission& o : other.skipped) report_.skipped.push_back(std::move(o));
  for (Omission& o : other.undecided) report_.undecided.push_back(std::move(o));
}

Report Recorder::take() {
  std::stable_sort(report_.findings.begin(), report_.findings.end(),
                   [](const Finding& a, const Finding& b) {
                     if (a.severity != b.severity) return a.severity > b.severity;
                     return a.follows.empty() && !b.follows.empty();
                   });
  return std::move(report_);
}

}  // namespace qkv::inline v0::doctor
