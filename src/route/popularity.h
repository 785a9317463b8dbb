// Owns: which experts of one layer were chosen most, where a choice counts less with every token since.
// Keeps: nothing allocates after construction; of equals the one with the lower number is first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::route {

class Popularity {
  public:
    // After `half_life` tokens a choice counts half.
    Popularity(size_t n_expert, double half_life);

    // One token's choice.
    void see(std::span<const int32_t> chosen);
    [[nodiscard]] bool empty() const { return tokens_ == 0; }
    // The out.size() most popular ones.
    void best(std::span<int32_t> out);

  private:
    std::vector<double> counts_;  // in units that grow with time
    std::vector<int32_t> order_;
    double growth_, unit_ = 1;
    uint64_t tokens_ = 0;
};

}  // namespace sluice::route
