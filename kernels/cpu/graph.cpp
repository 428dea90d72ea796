// The life of a graph: begin (on this thread), end, replay as often as wanted, destroy. And the clock.
#include "graph.h"

extern "C" void graph_begin() {
    recording = new Graph;
}

// The graph recorded since graph_begin, and how many calls it holds.
extern "C" void* graph_end(int64_t* num_calls) {
    Graph* graph = recording;
    recording = nullptr;
    *num_calls = static_cast<int64_t>(graph->size());
    return graph;
}

extern "C" void graph_replay(const void* graph) {
    for (const auto& work : *static_cast<const Graph*>(graph)) work();
}

extern "C" void graph_destroy(void* graph) {
    delete static_cast<Graph*>(graph);
}

// Add up seconds by kernel in `seconds` [NUM_KERNELS] from now on, for kernels of all threads; null: stop.
extern "C" void time_kernels(double* seconds) {
    seconds_by_kernel = seconds;
}
