// Time of an operator on a named device without running it: the roofline of Williams, Waterman and
// Patterson (2009). An operator takes the longer of its arithmetic at the device's matrix rate and
// its traffic at the device's memory rate, and at least one launch.
//
// Arithmetic is counted for matrix products, convolutions, attention and recurrent layers; all
// other operators are traffic: operands read, results written. Views are free.
#ifndef AUTOPART_PROFILER_ESTIMATE_H_
#define AUTOPART_PROFILER_ESTIMATE_H_

#include "partitioner/device.h"
#include "profiler/saved.h"
#include "profiler/signature.h"

namespace autopart {

struct OperatorWork {
  double flops = 0;   // of the forward
  double bytes = 0;   // read and written by the forward
  bool half = false;  // computes in fp16 or bf16
};
OperatorWork EstimateWork(const OperatorSignature& signature);

struct OperatorTimes {
  double forward_ms = 0;
  double backward_input_ms = 0;   // gradient of operands that are no parameters
  double backward_weight_ms = 0;  // gradient of parameters and of views of them
};
// `saved` says which results are views.
OperatorTimes EstimateTimes(const OperatorSignature& signature, const SavedForBackward& saved,
                            const DeviceSpec& device);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_ESTIMATE_H_
