// How many stages the next encode of a tensor has, and what they aim at: the controller and the plans
// of rust/core/src/fit, which say why.
#pragma once

#include "fit/thresholds.cuh"

namespace gradwire {

__host__ __device__ inline double root(double x, std::uint32_t k) {
    return k == 1 ? x : libm::pow(x, 1.0 / static_cast<double>(k));
}

// Stages of a new controller, and the most it may have.
__host__ inline void set_stages(Sparsify& options, double delta) {
    const double stages = ceil(libm::log(0.5 * 0.25 / delta) / libm::log(130.0) - 0.1);
    options.start_stages = 3 + (stages > 16.0 ? 16 : stages > 0.0 ? static_cast<std::uint32_t>(stages) : 0);
    options.most_stages = options.start_stages + 4;
}

__host__ __device__ inline Controller new_controller(const Sparsify& options) {
    Controller controller{};
    controller.stages = options.start_stages;
    controller.last = 1.0;
    return controller;
}

// The stages of one encode, handed out one by one.
struct StagePlan {
    double first;
    double entries;  // to come to
    std::uint32_t left;

    // The share of the survivors for the next stage; NaN when the stages are done.
    __host__ __device__ double next(std::uint64_t survivors) {
        if (left == 0) return libm::not_a_number();
        const double rho = towards(entries / static_cast<double>(survivors));
        left -= 1;
        return rho < 1.0 ? rho : libm::not_a_number();
    }

    // Entries expected above the threshold of a stage of a plan that has not begun.
    __host__ __device__ double expected(std::uint64_t numel, std::uint32_t stage) const {
        StagePlan plan = *this;
        double above = first * static_cast<double>(numel);
        for (std::uint32_t i = 1; i < stage; ++i) {
            const double rho = plan.next(static_cast<std::uint64_t>(above));
            if (rho != rho) break;
            above *= rho;
        }
        return above;
    }

  private:
    __host__ __device__ double towards(double share) const {
        constexpr double last_ratio = 0.7;
        constexpr std::uint32_t last = 2;
        const double equal = root(share, left);
        if (left <= last || equal > last_ratio) return equal;
        return root(share / libm::pow(last_ratio, static_cast<double>(last)), left - last);
    }
};

__host__ __device__ GRADWIRE_APART inline StagePlan plan_stages(const Sparsify& options, const Controller& controller,
                                                 std::uint64_t target, std::uint64_t numel) {
    const double wanted = static_cast<double>(target), n = static_cast<double>(numel);
    const std::uint32_t stages = controller.stages;
    const double entries = wanted * libm::exp(controller.aim), delta = smaller(entries / n, 1.0);
    if (stages <= 1) return {delta, entries, 0};
    const double first = greater(options.first_ratio, smaller(2.0 * delta, 0.5 * (1.0 + delta)));
    return {first, entries, stages - 1};
}

// Learns from an encode: entries above the fitted threshold over entries wanted.
__device__ inline void observe(const Sparsify& options, Controller& controller, double achieved) {
    if (achieved != achieved) return;
    controller.last = clamp(achieved, 0.0, 1.7976931348623157e308);
    constexpr double band = 0.223;
    const double miss = libm::log(clamp(controller.last, 1e-6, 1e6));
    const double gain = controller.seen > 0 && fabs(miss) > band ? 0.6 : 0.25;
    controller.aim = clamp(controller.aim - gain * clamp(miss, -0.5, 0.5), -1.5, 1.5);
    controller.seen = fabs(miss) > band ? (controller.seen + 1 < 3 ? controller.seen + 1 : 3) : 0;
    if (controller.stages < options.most_stages && (controller.seen >= 3 || fabs(controller.aim) > 0.25)) {
        controller.stages += 1;
        controller.seen = 0;
        controller.aim *= 0.5;
    }
}

// Learns whether a fit was of use.
__device__ inline void judge(Controller& controller, bool inside) {
    if (inside) {
        if (controller.misses > 0) controller.misses -= 1;
        if (controller.misses == 0) controller.rests = 0;
        return;
    }
    controller.misses += 1;
    if (controller.misses == 16) {
        controller.misses -= 1;
        controller.rest = 64u << controller.rests;
        controller.rests = controller.rests + 1 < 4 ? controller.rests + 1 : 4;
        controller.aim = 0.0;
    }
}

}  // namespace gradwire
