// PyTorch's dropout: the fused kernel on CUDA, and the product with a noise tensor on the CPU, so
// that a seed gives the mask that torch.nn.functional.dropout draws.
#include "backends/aten/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext::aten {
namespace {

void run_on_cuda(const DropoutProblem& p, Bindings& b) {
  if (p.pass == Pass::bwd) {
    check_reserve("dropout", kBaseline, b[Role::reserve], p.x.numel());
    Tensor mask = b[Role::reserve].view(at::kBool);
    give(b, Role::dx, p.x, at::native_dropout_backward(b[Role::dy], mask, 1 / (1 - p.p)));
    return;
  }
  auto [y, mask] = at::native_dropout(b[Role::x], p.p, true);
  give(b, Role::y, p.x, y);
  if (p.train) b[Role::reserve] = mask.view(at::kByte);
}

void run_on_cpu(const DropoutProblem& p, Bindings& b) {
  if (p.pass == Pass::bwd) {
    check_reserve("dropout", kBaseline, b[Role::reserve], p.x.nbytes());
    give(b, Role::dx, p.x, b[Role::dy] * b[Role::reserve].view(p.x.dtype));
    return;
  }
  const Tensor& x = b[Role::x];
  Tensor noise = at::empty_like(x).bernoulli_(1 - p.p).div_(1 - p.p);
  give(b, Role::y, p.x, x * noise);
  if (p.train) b[Role::reserve] = noise.view(at::kByte);
}

BuildResult build_dropout_plan(const DropoutProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  if (p.rng == RandomStream::cudnn) {
    return Unsupported{"the mask must come from cuDNN's generator (rng=cudnn)"};
  }
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  auto run = device.is_cuda() ? run_on_cuda : run_on_cpu;
  return make_plan(algorithm, {}, [p, run](Bindings& b) { run(p, b); });
}

const RegisterBackendOperator<DropoutProblem> dropout_registered("aten", candidates<DropoutProblem>,
                                                                 build_dropout_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
