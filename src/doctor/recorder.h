// Fills a report: texts of a finding come from its rule, and what comes after the first error is
// marked as its possible consequence.
#pragma once

#include <string>
#include <vector>

#include "qkv/doctor.h"

namespace qkv::inline v0::doctor {

class Recorder {
 public:
  // The reference stays valid until the next call.
  Finding& add(const char* id, Severity severity, std::string where, Evidence evidence = {});
  Finding& error(const char* id, std::string where, Evidence evidence = {}) {
    return add(id, Severity::kError, std::move(where), std::move(evidence));
  }
  void skip(const char* id, std::string reason);
  void undecided(const char* id, std::string reason);
  void merge(Report other);  // errors of another target: consequences of ours, if we have any

  bool has(const std::string& id) const;
  bool any_error() const { return !first_error_.empty(); }
  const std::string& first_error() const { return first_error_; }
  Report take();  // sorted; leaves nothing behind

 private:
  static void omit(std::vector<Omission>& list, const char* id, std::string reason);
  Report report_;
  std::string first_error_;
};

}  // namespace qkv::inline v0::doctor
