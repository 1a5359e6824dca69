#include "core/sandbox_record.hpp"

#include "base/fingerprint.hpp"
#include "base/utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace sandboxd::core {
namespace {

constexpr std::array<std::pair<life_state, std::string_view>, 8> names{{
    {life_state::absent, "absent"},
    {life_state::creating, "creating"},
    {life_state::starting, "starting"},
    {life_state::running, "running"},
    {life_state::stopping, "stopping"},
    {life_state::stopped, "stopped"},
    {life_state::failed, "failed"},
    {life_state::unknown, "unknown"},
}};

std::string_view tag_of(const cloud::sandbox_info& info, std::string_view name) {
    const auto found = info.tags.find(std::string(name));
    return found == info.tags.end() ? std::string_view{} : std::string_view(found->second);
}

} // namespace

std::string describe(const sandbox_key& key) {
    return key.profile + "/" + key.task;
}

std::string_view to_string(life_state state) noexcept {
    for (const auto& [value, name] : names) {
        if (value == state) {
            return name;
        }
    }
    return "unknown";
}

life_state life_state_from(std::string_view text) noexcept {
    for (const auto& [value, name] : names) {
        if (name == text) {
            return value;
        }
    }
    return life_state::unknown;
}

life_state life_state_of(cloud::sandbox_state state) noexcept {
    switch (state) {
    case cloud::sandbox_state::creating:
        return life_state::creating;
    case cloud::sandbox_state::starting:
        return life_state::starting;
    case cloud::sandbox_state::running:
        return life_state::running;
    case cloud::sandbox_state::stopping:
        return life_state::stopping;
    case cloud::sandbox_state::stopped:
        return life_state::stopped;
    case cloud::sandbox_state::failed:
        return life_state::failed;
    case cloud::sandbox_state::deleted:
        return life_state::absent;
    case cloud::sandbox_state::unknown:
        return life_state::unknown;
    }
    return life_state::unknown;
}

bool is_on_its_way(life_state state) noexcept {
    return state == life_state::creating || state == life_state::starting ||
           state == life_state::stopping;
}

bool is_active(life_state state) noexcept {
    return state == life_state::creating || state == life_state::starting ||
           state == life_state::running || state == life_state::stopping;
}

std::string key_digest(const sandbox_key& key) {
    // The length keeps ("a", "bc") and ("ab", "c") apart.
    return sha256_hex(std::to_string(key.profile.size()) + ":" + key.profile + key.task)
        .substr(0, 32);
}

std::string creation_tag(const sandbox_record& record) {
    return record.creation_id + "." + std::to_string(record.attempt);
}

bool is_made_by(const cloud::sandbox_info& info, std::string_view instance) {
    return tag_of(info, tag::owner) == tag::owner_value && tag_of(info, tag::instance) == instance;
}

bool is_made_for_key(const cloud::sandbox_info& info, const sandbox_key& key) {
    return tag_of(info, tag::key) == key_digest(key);
}

bool is_ephemeral(const cloud::sandbox_info& info) {
    return tag_of(info, tag::kind) == tag::kind_ephemeral;
}

std::string task_tag(const cloud::sandbox_info& info) {
    return std::string(tag_of(info, tag::task));
}

std::string digest_tag(const cloud::sandbox_info& info) {
    return std::string(tag_of(info, tag::key));
}

std::chrono::seconds timeout_tag(const cloud::sandbox_info& info) {
    const std::string_view text = tag_of(info, tag::timeout);
    std::uint32_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return std::chrono::seconds(whole ? seconds : 0);
}

bool is_made_for(const cloud::sandbox_info& info, const sandbox_record& record,
                 std::string_view instance) {
    return is_made_by(info, instance) && !record.creation_id.empty() &&
           tag_of(info, tag::creation).starts_with(record.creation_id + ".");
}

const cloud::sandbox_info* made_for(const std::vector<cloud::sandbox_info>& listing,
                                    const sandbox_record& record, std::string_view instance) {
    const auto found = std::find_if(listing.begin(), listing.end(), [&](const auto& each) {
        return each.state != cloud::sandbox_state::deleted && is_made_for(each, record, instance);
    });
    return found == listing.end() ? nullptr : &*found;
}

bool is_new_since(const sandbox_record& record, std::uint64_t generation) noexcept {
    return generation != 0 && record.first_boot > generation;
}

void note_state(sandbox_record& record, life_state state) {
    record.state = state;
    const bool has_run = state == life_state::running || state == life_state::stopping ||
                         state == life_state::stopped;
    record.untried = record.untried && !has_run;
}

void note_doubt(sandbox_record& record) {
    const bool known =
        std::any_of(record.doubts.begin(), record.doubts.end(),
                    [&](const open_doubt& each) { return each.creation_id == record.creation_id; });
    if (!record.creation_id.empty() && !known) {
        record.doubts.push_back({record.creation_id, 0});
    }
}

std::map<std::string, std::string> tags_for(const sandbox_record& record,
                                            std::string_view instance) {
    const std::string task = record.key.task.substr(0, 128); // its last character may be cut
    std::map<std::string, std::string> tags{
        {std::string(tag::owner), std::string(tag::owner_value)},
        {std::string(tag::instance), std::string(instance)},
        {std::string(tag::key), key_digest(record.key)},
        {std::string(tag::creation), creation_tag(record)},
        {std::string(tag::task), task.substr(0, valid_utf8_prefix(task))}};
    if (record.timeout.count() != 0) {
        tags.emplace(tag::timeout, std::to_string(record.timeout.count()));
    }
    if (!record.persistent) {
        tags.emplace(tag::kind, tag::kind_ephemeral);
    }
    return tags;
}

} // namespace sandboxd::core
