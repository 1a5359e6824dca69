#include "sync/push_plan.hpp"

#include "sync/path.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>

namespace sandboxd::sync {
namespace {

constexpr std::size_t most_claims = 20'000;

} // namespace

void push_plan::begin(manifest remembered) {
    remembered_ = std::move(remembered);
    skipped_ = found_.skipped;
    placed_.clear();
    given_up_.clear();
}

void push_plan::select() {
    todo_.clear();
    claimed_.clear();
    unchanged_ = 0;
    for (const local_entry& each : found_.entries) {
        if (stop_) break;
        if (placed_.contains(each.remote) || given_up_.contains(each.remote)) continue;
        if (!is_unchanged(each)) {
            todo_.push_back(each);
            continue;
        }
        claimed_.push_back(&each);
        if (each.kind != file_kind::directory) ++unchanged_;
    }
}

bool push_plan::is_unchanged(const local_entry& each) {
    if (how_.force || !how_.remember) return false;
    const manifest_entry* known = remembered_.find(each.remote);
    const verdict first = compare(known, each);
    if (first != verdict::look) return first == verdict::unchanged;
    file_print print = each.print;
    std::string content;
    std::int64_t looked_at = wall_clock();
    if (each.kind == file_kind::link) {
        looked_at = each.read_at;
        digest target;
        target.add(each.link);
        content = target.take();
    } else {
        try {
            std::optional<content_now> now = digest_of_file(each.host, stop_);
            if (!now) return false;
            content = std::move(now->digest);
            print = now->print;
        } catch (const std::system_error&) {
            return false; // the archive will name it
        }
    }
    if (content != known->digest) return false;
    manifest_entry touched = *known;
    touched.print = print;
    touched.doubtful = is_doubtful(print, looked_at);
    if (!(touched == *known)) {
        remembered_.entries.insert_or_assign(each.remote, std::move(touched));
        changed_ = true;
    }
    return true;
}

void push_plan::unsettle(const std::string& into) {
    ours_.clear();
    parents_.clear();
    if (remembered_.entries.empty()) return;
    std::unordered_set<std::string_view> passed; // directories, each looked at once
    const auto will_be_directory = [&](std::string path) {
        const auto known = remembered_.entries.find(path);
        if (known == remembered_.entries.end()) return;
        if (known->second.kind == file_kind::directory) {
            parents_.push_back(std::move(path));
        } else {
            known->second.unsettled = true;
            ours_.push_back(std::move(path));
        }
    };
    for (const local_entry& each : todo_) {
        if (!into.empty()) {
            const auto there = remembered_.entries.find(each.remote + "/" + into);
            if (there != remembered_.entries.end()) changed_ = there->second.unsettled = true;
        }
        const auto known = remembered_.entries.find(each.remote);
        const bool may_stay = !into.empty() && known != remembered_.entries.end() &&
                              known->second.kind == file_kind::directory;
        if (known != remembered_.entries.end() && !may_stay) {
            changed_ = true;
            known->second.unsettled = true;
            if (each.kind != file_kind::directory) remembered_.forget_below(each.remote);
        }
        if (each.kind == file_kind::directory && passed.insert(each.remote).second) {
            will_be_directory(each.remote);
        }
        for (std::string_view above = parent_of(each.remote);
             above != workspace && passed.insert(above).second; above = parent_of(above)) {
            will_be_directory(std::string(above));
        }
    }
    if (!ours_.empty()) changed_ = true;
}

std::vector<std::string> push_plan::claims() const {
    std::vector<std::string> some = parents_;
    const std::size_t step = claimed_.size() / most_claims + 1;
    for (std::size_t i = 0; i < claimed_.size(); i += step)
        some.push_back(claimed_[i]->remote);
    return some;
}

push_plan::stretch push_plan::stretch_from(std::size_t end, std::uint64_t bytes,
                                           std::size_t most) const {
    stretch next{end, 0};
    most = std::min(most, todo_.size() - end);
    for (std::uint64_t content = 0; next.size < most && content < bytes;)
        content += content_of({end + next.size++, 1});
    return next;
}

std::uint64_t push_plan::content_of(stretch which) const {
    std::uint64_t content = 0;
    for (const local_entry& each : entries(which))
        content += each.kind == file_kind::file ? each.print.size : 0;
    return content;
}

std::span<const local_entry> push_plan::entries(stretch which) const {
    return std::span(todo_).subspan(which.begin, which.size);
}

void push_plan::give_up_what_is_not_in(stretch which, const archive_writer& archive) {
    std::vector<bool> there(which.size);
    for (const sent_member& each : archive.members())
        there[each.entry] = true;
    for (std::size_t i = 0; i < which.size; ++i) {
        if (!there[i]) given_up_.insert(todo_[which.begin + i].remote);
    }
    skipped_.insert(skipped_.end(), archive.skipped().begin(), archive.skipped().end());
}

void push_plan::redirect(const std::string& path) {
    for (std::vector<local_entry>* entries : {&found_.entries, &todo_}) {
        for (local_entry& each : *entries)
            each.remote = path;
    }
}

bool push_plan::note(stretch which, const std::vector<sent_member>& members,
                     const std::vector<helper_failure>& failed) {
    std::map<std::size_t, const helper_failure*> failures;
    for (const helper_failure& each : failed)
        failures.emplace(each.index, &each);
    bool again = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
        const local_entry& entry = todo_[which.begin + members[i].entry];
        const auto failure = failures.find(i);
        if (members[i].torn) {
            again = true;
        } else if (failure == failures.end()) {
            note_placed(entry, members[i].record);
        } else {
            given_up_.insert(entry.remote);
            skipped_.push_back(
                {entry.host, entry.remote,
                 failure->second->in_the_way ? skip_reason::in_the_way : skip_reason::failed,
                 failure->second->text});
        }
    }
    return again;
}

void push_plan::note_placed(const local_entry& entry, const manifest_entry& record) {
    placed_.insert_or_assign(entry.remote, record);
    if (entry.kind != file_kind::directory) remembered_.forget_below(entry.remote);
    if (how_.remember) {
        remembered_.entries.insert_or_assign(entry.remote, record);
        changed_ = true;
    } else if (remembered_.entries.erase(entry.remote) > 0) {
        changed_ = true;
    }
    // What it is in are directories now.
    for (const std::string& each : ours_) {
        const auto known = remembered_.entries.find(each);
        if (known == remembered_.entries.end() || each == entry.remote) continue;
        if (known->second.kind != file_kind::directory && is_below(entry.remote, each)) {
            remembered_.entries.erase(known);
        }
    }
}

void push_plan::forget(const std::string& path) {
    if (remembered_.entries.erase(path) > 0) changed_ = true;
}

void push_plan::give_up_the_rest() {
    for (const local_entry& each : todo_) {
        skipped_.push_back(
            {each.host, each.remote, skip_reason::changing, "it changed each time it was read"});
    }
}

} // namespace sandboxd::sync
