// CUDA on the CPU, as far as runtime/cuda uses it: blocks one after the other, and of a block that
// has barriers each thread on a stack of its own, which hands over where CUDA's would wait. A warp
// runs as far as it can before the next one does, and after each barrier in the other order, so that
// what hangs on the order, for want of a barrier, shows. Each source is built with it a few times, so
// it needs none of C++'s containers, which take a compiler longer than most kernels.
#pragma once
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

constexpr size_t STACK = 64 * 1024, MOST = 1024;  // threads of a block
enum Result { DONE = 0, BARRIER_NOT_EXPECTED = 1, NOT_REACHED_BY_ALL = 2 };
enum State { AT_BARRIER, AT_EXCHANGE, ENDED };

struct Thread {  // one that has ended goes on with the next block's
    ucontext_t first;
    jmp_buf here;
    void* stack = nullptr;
    bool begun = false;
    State state = AT_BARRIER;
    unsigned exchanges = 0;
};

using Kernel = void (*)(void** args);

static Thread threads[MOST];
static jmp_buf scheduler;
static Kernel kernel;
static void** arguments;
static size_t current;
static bool apart;   // threads run as plain calls: no barrier can be kept
static Result result;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static unsigned char slots[2][MOST][16];

// Only a thread's beginning is ucontext's: each of its switches is a system call.
static void leave(State state) {
    threads[current].state = state;
    if (!_setjmp(threads[current].here)) _longjmp(scheduler, 1);
}

static void begin() {
    for (;;) {
        kernel(arguments);
        leave(ENDED);
    }
}

static void enter() {
    if (_setjmp(scheduler)) return;
    Thread& t = threads[current];
    if (t.begun) _longjmp(t.here, 1);
    t.begun = true;
    if (!t.stack) t.stack = malloc(STACK);
    getcontext(&t.first);
    t.first.uc_stack.ss_sp = t.stack;
    t.first.uc_stack.ss_size = STACK;
    t.first.uc_link = nullptr;
    makecontext(&t.first, begin, 0);
    setcontext(&t.first);
}

static void place(size_t thread) {
    current = thread;
    threadIdx = {unsigned(thread % blockDim.x), unsigned(thread / blockDim.x), 0};
}

// Until all wait at a barrier or have ended; how many have.
static size_t run_warp(size_t first, size_t last, bool forward) {
    for (;;) {
        size_t exchanging = 0, ended = 0;
        for (size_t i = first; i < last; i++) {
            place(forward ? i : last - 1 - (i - first));
            enter();
            exchanging += threads[current].state == AT_EXCHANGE;
            ended += threads[current].state == ENDED;
        }
        if (exchanging == 0) return ended;
        if (exchanging != last - first) {
            result = NOT_REACHED_BY_ALL;
            return 0;
        }
    }
}

static void run_block(size_t count) {
    for (size_t i = 0; i < count; i++) threads[i].exchanges = 0;
    const size_t warps = (count + 31) / 32;
    for (bool forward = true; result == DONE; forward = !forward) {
        size_t ended = 0;
        for (size_t w = 0; w < warps; w++) {
            const size_t first = 32 * (forward ? w : warps - 1 - w);
            ended += run_warp(first, first + 32 < count ? first + 32 : count, forward);
        }
        if (ended == count) return;
        if (ended) result = NOT_REACHED_BY_ALL;
    }
    for (Thread& t : threads) t.begun = false;  // some stand in the middle of something
}

static int launch(const unsigned* grid, const unsigned* block, bool barriers, Kernel launched,
                  void** args) {
    pthread_mutex_lock(&one_at_a_time);
    gridDim = {grid[0], grid[1], 1};
    blockDim = {block[0], block[1], 1};
    kernel = launched;
    arguments = args;
    apart = !barriers;
    result = DONE;
    const size_t count = size_t(block[0]) * block[1];
    for (unsigned y = 0; y < grid[1] && result == DONE; y++)
        for (unsigned x = 0; x < grid[0] && result == DONE; x++) {
            blockIdx = {x, y, 0};
            if (barriers)
                run_block(count);
            else
                for (size_t i = 0; i < count; i++) {
                    place(i);
                    kernel(arguments);
                }
        }
    const Result found = result;
    pthread_mutex_unlock(&one_at_a_time);
    return found;
}

}  // namespace emulate

static void __syncthreads() {
    using namespace emulate;
    if (apart) {
        result = BARRIER_NOT_EXPECTED;
        return;
    }
    leave(AT_BARRIER);
}

// All threads of the warp exchange at once.
template <typename T>
T __shfl_xor_sync(unsigned, T value, int with) {
    using namespace emulate;
    if (apart) {
        result = BARRIER_NOT_EXPECTED;
        return value;
    }
    const size_t me = current;
    auto& slot = slots[threads[me].exchanges++ % 2];
    memcpy(slot[me], &value, sizeof value);
    leave(AT_EXCHANGE);
    memcpy(&value, slot[me / 32 * 32 + (me % 32 ^ with)], sizeof value);
    return value;
}
