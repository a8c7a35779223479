// Stages and replicas of each.
#ifndef AUTOPART_PIPELINE_INTERNAL_SHAPE_H_
#define AUTOPART_PIPELINE_INTERNAL_SHAPE_H_

namespace autopart::internal {

struct Shape {
  int stages = 1;    // those of a rank counted once
  int replicas = 1;  // 0: not all as many
};

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_SHAPE_H_
