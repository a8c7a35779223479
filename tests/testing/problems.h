// Problems by hand: edges, and the value of a placement straight from the definition in problem.h.
#ifndef AUTOPART_TESTS_TESTING_PROBLEMS_H_
#define AUTOPART_TESTS_TESTING_PROBLEMS_H_

#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::testing {

void AddEdge(internal::Problem& problem, int from, int to);

// Heaviest stage; `cpu` says of each place in the chain whether it is a CPU.
double ValueOf(const internal::Problem& problem, const std::vector<int>& place,
               const std::vector<bool>& cpu);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_PROBLEMS_H_
