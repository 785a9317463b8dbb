// What gate d concludes from the verdict on a drive. What it measures is asked of the program (gate_test.sh).
#include "engine/gate_d.h"

#include <gtest/gtest.h>

namespace sluice::engine {
namespace {

TEST(GateD, AYesNeedsADriveThatLetsSomethingBeReadEarly) {
    machine::Verdict drive;
    machine::GateCheck check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::unknown) << "only memory was met";
    EXPECT_NE(check.found.find("sluice probe m.gguf"), std::string::npos) << check.found;

    drive.derived.emplace();
    drive.derived->window = 0;
    check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::no);
    EXPECT_NE(check.found.find("--predict-prefetch and --prefetch read nothing early"), std::string::npos);

    drive.derived->window = 2 * MiB;
    check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::yes);
    EXPECT_NE(check.found.find("2.0 MiB"), std::string::npos) << check.found;

    check = early_reads_check("m.gguf", error(Code::not_found, "nobody has measured it"));
    EXPECT_EQ(check.outcome, machine::Outcome::unknown);
    EXPECT_NE(check.found.find("nobody has measured it"), std::string::npos);
}

}  // namespace
}  // namespace sluice::engine
