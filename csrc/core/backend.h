// Backends, which turn algorithms into plans and have no state. The file that implements an
// operator for a backend registers one entry. Names no backend.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

class Operator;

struct Candidate {
  Algorithm algorithm;
  std::string source;  // "heuristic A #3", "default knobs", "enumeration"
};

struct BackendOperator {
  // In the order in which they are tried without measuring.
  std::function<std::vector<Candidate>(const Problem&, const Device&)> candidates;
  std::function<BuildResult(const Problem&, const Algorithm&, const Device&)> build;
  // Variations to try of an algorithm that is among the best; may be empty.
  std::function<std::vector<Algorithm>(const Problem&, const Algorithm&, const Device&)> neighbours;
  // Those notes of a plan that are known without building it; may be empty.
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

// Returns Unsupported with the reason if the algorithm cannot be built, and does not throw then.
BuildResult build(const Problem& problem, const Algorithm& algorithm, const Device& device);
// The notes of an algorithm's plan that are known without building it.
std::optional<Notes> notes_before_building(const Problem& problem, const Algorithm& algorithm,
                                           const Device& device);

// The families whose common problems have an algorithm such as "aten:window". None for the engines
// of `graph`, which only a GPU can list.
std::vector<std::string> families_with(const std::string& algorithm);
// The passes of a family whose common problems have an algorithm.
std::vector<std::string> passes_with(const Operator& op, const Algorithm& algorithm);

// A constant of this type at namespace scope registers functions of the family's struct.
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
