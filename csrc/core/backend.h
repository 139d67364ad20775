// A backend turns algorithms into plans. It keeps no state. Each operator it can do is one entry,
// registered by the file that implements it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/plan.h"

namespace torch_cudnn_ext {

struct Candidate {
  Algorithm algorithm;
  std::string source;  // "heuristic A #3", "default knobs", "enumeration"
};

struct BackendOperator {
  // In the order in which they are to be tried without measuring.
  std::function<std::vector<Candidate>(const Problem&, const Device&)> candidates;
  std::function<BuildResult(const Problem&, const Algorithm&, const Device&)> build;
  // Variations of an algorithm worth trying when it is among the best; may be empty.
  std::function<std::vector<Algorithm>(const Problem&, const Algorithm&, const Device&)> neighbours;
  // Some of a plan's notes without building it, where they can be had; may be empty.
  std::function<std::optional<Notes>(const Problem&, const Algorithm&, const Device&)> notes;
};

class Backend {
 public:
  explicit Backend(std::string name) : name(std::move(name)) {}
  void add(const std::string& family, BackendOperator op);
  const BackendOperator* find(const std::string& family) const;

  const std::string name;

 private:
  std::vector<std::pair<std::string, BackendOperator>> operators_;
};

Backend& backend(const std::string& name);  // makes it on first use
const Backend* find_backend(const std::string& name);
std::vector<std::string> backend_names();

// Never throws for an algorithm that cannot be had: that is Unsupported, with the reason.
BuildResult build(const Problem& problem, const Algorithm& algorithm, const Device& device);
// What is known of its notes before that; they may be more.
std::optional<Notes> notes_before_building(const Problem& problem, const Algorithm& algorithm,
                                           const Device& device);

// The families whose common problems have an algorithm ("aten:window"); of cuDNN's graph engines,
// which only a GPU can tell, none.
std::vector<std::string> families_with(const std::string& algorithm);

// Typed registration: functions of the operator's own problem struct.
template <class P>
struct RegisterBackendOperator {
  using Candidates = std::vector<Candidate> (*)(const P&, const Device&);
  using Build = BuildResult (*)(const P&, const Algorithm&, const Device&);
  using Neighbours = std::vector<Algorithm> (*)(const P&, const Algorithm&, const Device&);
  using FoundNotes = std::optional<Notes> (*)(const P&, const Algorithm&, const Device&);

  RegisterBackendOperator(const char* backend_name, Candidates candidates, Build build,
                          Neighbours neighbours = nullptr, FoundNotes notes = nullptr) {
    BackendOperator op;
    op.candidates = [=](const Problem& p, const Device& d) {
      return candidates(std::get<P>(p), d);
    };
    op.build = [=](const Problem& p, const Algorithm& a, const Device& d) {
      return build(std::get<P>(p), a, d);
    };
    if (neighbours != nullptr) {
      op.neighbours = [=](const Problem& p, const Algorithm& a, const Device& d) {
        return neighbours(std::get<P>(p), a, d);
      };
    }
    if (notes != nullptr) {
      op.notes = [=](const Problem& p, const Algorithm& a, const Device& d) {
        return notes(std::get<P>(p), a, d);
      };
    }
    backend(backend_name).add(P::kFamily, std::move(op));
  }
};

}  // namespace torch_cudnn_ext
