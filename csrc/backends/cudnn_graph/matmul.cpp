// Matrix products as an operation graph, with the epilogue in it: alpha, beta z, bias, relu.
#include "backends/cudnn_graph/engine.h"
#include "backends/cudnn_graph/pointwise.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

std::vector<Scalar> scalars_of(const MatmulProblem& p) {
  if (p.accumulate != Accumulate::general) return {};
  if (!p.z) return {&Bindings::alpha};
  return {&Bindings::alpha, &Bindings::beta};
}

// The product and what follows it, one operation after the other. The last one writes y.
class GraphBuilder {
 public:
  explicit GraphBuilder(const MatmulProblem& p) : p_(p), scalars_(scalars_of(p)) {}

  OperationGraph make(const Device& device) {
    bool general = p_.accumulate == Accumulate::general, relu = p_.activation == Activation::relu;
    bool scaled_z = general && p_.z;
    steps_ = 1 + general + scaled_z + p_.z + p_.bias + relu;
    size_t x = tensor(p_.x, Role::x), w = tensor(p_.w, Role::w);
    size_t value = result();
    multiply(x, w, value);
    if (general) value = follow(CUDNN_POINTWISE_MUL, value, scalar(&Bindings::alpha));
    if (p_.z) {
      size_t z = tensor(p_.output(), Role::z);
      if (general) z = follow(CUDNN_POINTWISE_MUL, z, scalar(&Bindings::beta));
      value = follow(CUDNN_POINTWISE_ADD, value, z);
    }
    if (p_.bias) {
      int64_t n = p_.output().sizes[2];
      size_t bias = tensor({p_.x.dtype, {1, 1, n}, {n, n, 1}}, Role::bias);
      value = follow(CUDNN_POINTWISE_ADD, value, bias);
    }
    if (relu) {
      size_t y = result();
      Descriptor function = make_function(CUDNN_POINTWISE_RELU_FWD, p_.compute);
      operations_.push_back(make_pointwise(function, parts_[value], parts_[y]));
      parts_.push_back(std::move(function));
    }
    OperationGraph graph = make_graph(device, std::move(parts_), std::move(operations_));
    graph.float32_products = p_.x.dtype == at::kFloat;
    return graph;
  }

 private:
  // Each gives the place in parts_ of what it makes.
  size_t keep(Descriptor part) {
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  }
  size_t tensor(const TensorSpec& spec, Role role) {
    return keep(make_tensor(spec, role, p_.alignment));
  }
  size_t scalar(Scalar which) { return keep(make_scalar(scalars_, which, 3)); }
  size_t result() {
    if (++made_ == steps_) return tensor(p_.output(), Role::y);
    TensorSpec wide = p_.output();
    wide.dtype = p_.compute;
    return keep(make_intermediate(wide, made_));
  }
  void multiply(size_t x, size_t w, size_t y) {
    Descriptor matmul(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    matmul.set(CUDNN_ATTR_MATMUL_COMP_TYPE, cudnn_type(p_.compute))
        .finalise("the product is not valid");
    Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, parts_[x])
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, parts_[w])
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, parts_[y])
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul)
        .finalise("cuDNN has no such product");
    operations_.push_back(std::move(operation));
    parts_.push_back(std::move(matmul));
  }
  size_t follow(cudnnPointwiseMode_t mode, size_t value, size_t with) {
    size_t made = result();
    Descriptor function = make_function(mode, p_.compute);
    operations_.push_back(make_pointwise(function, parts_[value], parts_[with], parts_[made]));
    parts_.push_back(std::move(function));
    return made;
  }

  const MatmulProblem& p_;
  const std::vector<Scalar> scalars_;
  std::vector<Descriptor> parts_, operations_;
  int steps_ = 0, made_ = 0;
};

OperationGraph make_operation_graph(const MatmulProblem& p, const Device& device) {
  return GraphBuilder(p).make(device);
}

// nullopt where a graph can be made.
std::optional<Unsupported> refuse(const MatmulProblem& p) {
  if (p.x.dtype == at::kDouble) {
    return Unsupported{"cuDNN's engines multiply no float64 matrices"};
  }
  return std::nullopt;
}

std::string find_defect(const MatmulProblem& p, const Algorithm& algorithm, const Notes&) {
  bool aligned = p.alignment >= 16;
  if (algorithm.name == "eng0" && !aligned) {
    return "engine 0 of cuDNN 9.19 fails at the run where tensors are not aligned to 16 bytes";
  }
  if (algorithm.name == "eng2" && !(aligned && has_aligned_rows(p.x) && has_aligned_rows(p.w))) {
    return "engine 2 of cuDNN 9.19 computes wrong results where rows are not aligned to 16 bytes";
  }
  return "";
}

std::shared_ptr<Plan> make_plan(const MatmulProblem& p, const Algorithm& algorithm, Engine engine) {
  // Also where the note is missing, as of engine 0 of cuDNN 9.19.
  if (p.x.dtype == at::kFloat) engine.notes.add(Note::tf32);
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), operator_of(p).slots(p),
                                      scalars_of(p));
}

const auto registered =
    register_graphs<MatmulProblem, refuse, make_operation_graph, find_defect, make_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
