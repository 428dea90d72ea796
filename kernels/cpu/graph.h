// Record and replay, the idea of CUDA graphs on a CPU.
//
// Every kernel's entry point does its work inside `launch`. While a thread records, `launch` also keeps the work with
// its arguments: pointers, sizes, strides. Replaying does the same calls again without Python in between, on the same
// memory: new inputs are written to where the old ones were.
#pragma once

#include <functional>
#include <vector>

using Graph = std::vector<std::function<void()>>;

inline thread_local Graph* recording = nullptr;

template <typename Work>
inline void launch(Work work) {
    if (recording) recording->push_back(work);
    work();
}
