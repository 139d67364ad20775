// Convolution as an operation graph: forward with or without an epilogue, data gradient, filter
// gradient.
#include <algorithm>
#include <iterator>
#include <set>

#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "core/operator.h"
#include "cudnn/problems.h"
#include "problems/depthwise.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::graph {
namespace {

// The attribute names of one pass. The three descriptors differ in these alone.
struct PassAttributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};
constexpr PassAttributes kConvolutionForward{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr PassAttributes kBackwardData{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
constexpr PassAttributes kBackwardFilter{
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

const PassAttributes& attributes_of(ConvolutionPass pass) {
  if (pass == ConvolutionPass::fwd) return kConvolutionForward;
  return pass == ConvolutionPass::bwd_data ? kBackwardData : kBackwardFilter;
}

Descriptor make_convolution(const ConvolutionProblem& p) {
  auto mode = p.mode == ConvolutionMode::conv ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION;
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, cudnn_type(p.compute))
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<int64_t>(p.spatial_dims()))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p.padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, p.padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, p.dilation)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p.stride)
      .finalise("the convolution is not valid");
  return convolution;
}

// One number a channel, to be added everywhere.
TensorSpec bias_of(const ConvolutionProblem& p) {
  Dims sizes(p.y.sizes.size(), 1);
  sizes[1] = p.y.sizes[1];
  return {*p.bias, sizes, channels_last_strides(sizes)};
}

OperationGraph make_convolution_operation_graph(const ConvolutionProblem& problem,
                                                const Device& device) {
  ConvolutionProblem p = lift_to_plane(problem);
  const PassAttributes& names = attributes_of(p.pass);
  int steps = 1 + p.z.has_value() + p.bias.has_value() + (p.activation != Activation::none);
  Chain graph(steps, p.y, p.compute, p.alignment);
  size_t x = graph.tensor(p.x, Role::x), w = graph.tensor(p.w, Role::w);
  size_t y = graph.result();  // in a gradient what it reads
  size_t convolution = graph.keep(make_convolution(p));
  Descriptor operation(names.operation);
  operation.set(names.x, graph[x])
      .set(names.w, graph[w])
      .set(names.y, graph[y])
      .set(names.convolution, graph[convolution]);
  float beta = p.accumulate == Accumulate::add ? 1 : 0;
  if (p.x.dtype == at::kDouble) {
    double one = 1, beta_double = beta;
    operation.set(names.alpha, CUDNN_TYPE_DOUBLE, 1, &one)
        .set(names.beta, CUDNN_TYPE_DOUBLE, 1, &beta_double);
  } else {
    float one = 1;
    operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1, &one)
        .set(names.beta, CUDNN_TYPE_FLOAT, 1, &beta);
  }
  graph.add(std::move(operation), "cuDNN has no such convolution");
  if (p.z) y = graph.follow(CUDNN_POINTWISE_ADD, y, graph.tensor(p.y, Role::z));
  if (p.bias) y = graph.follow(CUDNN_POINTWISE_ADD, y, graph.tensor(bias_of(p), Role::bias));
  graph.activate(p.activation, y);
  OperationGraph made = graph.make(device);
  made.float32_products = p.x.dtype == at::kFloat;
  return made;
}

// nullopt if a graph can be made.
std::optional<Unsupported> why_convolution_is_unsupported(const ConvolutionProblem& p) {
  if (p.accumulate == Accumulate::general) {
    return Unsupported{
        "alpha and beta are fixed in a plan of the graph API; it takes (1, 0) and "
        "(1, 1) only"};
  }
  return std::nullopt;
}

std::shared_ptr<Plan> make_convolution_plan(const ConvolutionProblem& p, const Algorithm& algorithm,
                                            Engine engine) {
  if (p.has_epilogue()) engine.notes.add(Note::fused);
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), operator_of(p).slots(p));
}

// The graph of the problem as it is, which is the fused one if there is an epilogue (bias, z,
// activation).
using Graph = Graphs<ConvolutionProblem, why_convolution_is_unsupported,
                     make_convolution_operation_graph, make_convolution_plan>;

ConvolutionProblem plain_of(ConvolutionProblem p) {
  p.bias.reset();
  p.z.reset();
  p.activation = Activation::none;
  return p;
}

// Whether some policy excludes `a` and admits `b`.
bool has_lower_numerics(const Notes& a, const Notes& b) {
  for (Note note : {Note::tf32, Note::down_convert, Note::low_accuracy, Note::nondeterministic,
                    Note::reduced_range}) {
    if (a.has(note) && !b.has(note)) return true;
  }
  return false;
}

// With an epilogue an algorithm is the fused graph's, else the plain graph's followed by the rest.
// Engines of the same number differ between the two; the fused one is not used if its numerics are
// lower.
BuildResult build_plan(const ConvolutionProblem& p, const Algorithm& algorithm,
                       const Device& device) {
  BuildResult built = Graph::build(p, algorithm, device);
  if (!p.has_epilogue()) return built;
  auto* fused = std::get_if<std::shared_ptr<Plan>>(&built);
  bool decided = fused == nullptr ? std::get<Unsupported>(built).needs_driver
                                  : !has_lower_numerics((*fused)->notes, {});
  if (decided) return built;
  BuildResult plain = Graph::build(plain_of(p), algorithm, device);
  if (std::holds_alternative<Unsupported>(plain)) return fused == nullptr ? plain : built;
  auto convolution = std::get<std::shared_ptr<Plan>>(plain);
  if (fused != nullptr && !has_lower_numerics((*fused)->notes, convolution->notes)) return built;
  return std::make_shared<FunctionPlan>(algorithm, convolution->notes, convolution->workspace_bytes,
                                        [convolution, p](Bindings& b) {
                                          convolution->run(b);
                                          add_epilogue(p, b[Role::y], b);
                                        });
}

// The fused graph's own. Its heuristic may name an engine without knobs that is not used.
std::vector<Candidate> fused_candidates(const ConvolutionProblem& p, const Device& device) {
  std::vector<Candidate> list = Graph::candidates(p, device);
  auto gives_way = [&](const Candidate& c) {
    if (!c.algorithm.options.empty() || c.source == kDefaultKnobs) return false;
    BuildResult built = build_plan(p, c.algorithm, device);
    auto* plan = std::get_if<std::shared_ptr<Plan>>(&built);
    return plan != nullptr && !(*plan)->notes.has(Note::fused);
  };
  list.erase(std::remove_if(list.begin(), list.end(), gives_way), list.end());
  return list;
}

// Whether the first algorithm that the heuristic names runs on tensor cores.
bool leads_on_tensor_cores(const std::vector<Candidate>& list, const ConvolutionProblem& p,
                           const Device& device) {
  if (list.empty() || list[0].source == kDefaultKnobs) return false;
  return Graph::notes(p, list[0].algorithm, device).value_or(Notes{}).has(Note::tensor_core);
}

// A matrix product for each image, for which the plain graph alone has engines.
bool is_product_of_planes(const ConvolutionProblem& p) {
  return is_one_pixel(p.w.sizes) && !is_channels_last(p.x);
}

// With an epilogue also the plain graph's: the fused graph has other engines, and fewer. For some
// convolutions it has no fast ones; then the plain graph's heuristic comes first.
std::vector<Candidate> candidates(const ConvolutionProblem& p, const Device& device) {
  if (!p.has_epilogue()) return Graph::candidates(p, device);
  std::vector<Candidate> list = fused_candidates(p, device);
  std::vector<Candidate> plain = Graph::candidates(plain_of(p), device);
  bool slower =
      leads_on_tensor_cores(plain, plain_of(p), device) && !leads_on_tensor_cores(list, p, device);
  if (is_depthwise(p) || slower || is_product_of_planes(p)) list.swap(plain);
  std::move(plain.begin(), plain.end(), std::back_inserter(list));
  auto rank = [](const Candidate& c) {
    if (c.source == kDefaultKnobs) return 2;
    return c.source.find("FALLBACK") == std::string::npos ? 0 : 1;
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  std::set<std::string> seen;
  auto known = [&](const Candidate& c) { return !seen.insert(c.algorithm.text()).second; };
  list.erase(std::remove_if(list.begin(), list.end(), known), list.end());
  return list;
}

std::vector<Algorithm> neighbours(const ConvolutionProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (!p.has_epilogue()) return Graph::neighbours(p, algorithm, device);
  BuildResult built = build_plan(p, algorithm, device);
  auto* plan = std::get_if<std::shared_ptr<Plan>>(&built);
  bool fused = plan != nullptr && (*plan)->notes.has(Note::fused);
  return Graph::neighbours(fused ? p : plain_of(p), algorithm, device);
}

// With an epilogue it takes a build to know which graph's engine it is.
std::optional<Notes> notes(const ConvolutionProblem& p, const Algorithm& algorithm,
                           const Device& device) {
  return p.has_epilogue() ? std::nullopt : Graph::notes(p, algorithm, device);
}

const RegisterBackendOperator<ConvolutionProblem> convolution_registered("graph", candidates,
                                                                         build_plan, neighbours,
                                                                         notes);

}  // namespace
}  // namespace torch_cudnn_ext::graph
