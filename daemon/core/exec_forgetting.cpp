#include "core/exec_forgetting.hpp"

#include <algorithm>
#include <tuple>

namespace sandboxd::core {
namespace {

constexpr std::int64_t asked_for = 86'400'000; // ms: the shim's --linger-s

} // namespace

std::set<std::string> forgotten_first(std::vector<const exec_record*> over, std::size_t count,
                                      std::int64_t now) {
    const auto place = [now](const exec_record* each) {
        const bool wanted = !each->forgotten && now - each->at < asked_for;
        return std::make_tuple(wanted, each->at);
    };
    std::stable_sort(over.begin(), over.end(), [&](const exec_record* a, const exec_record* b) {
        return place(a) < place(b);
    });
    std::set<std::string> ids;
    for (std::size_t i = 0; i < std::min(count, over.size()); ++i) {
        ids.insert(over[i]->exec_id);
    }
    return ids;
}

} // namespace sandboxd::core
