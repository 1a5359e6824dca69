#include "rpc/health.hpp"

#include <boost/json/object.hpp>

#include <string>
#include <string_view>

namespace sandboxd::rpc {

namespace json = boost::json;

json::array health_items(const services& parts) {
    json::array errors;
    json::array warnings;
    const auto add = [](json::array& to, std::string_view code, std::string_view severity,
                        const std::string& text, std::string_view hint) {
        to.push_back(
            json::object{{"code", code}, {"severity", severity}, {"text", text}, {"hint", hint}});
    };
    if (!parts.account.configured()) {
        add(errors, "not_configured", "error",
            "There is no DeepInfra API key, so no command can run.",
            info(error_name::not_configured).hint);
    }
    if (parts.account.key_refused()) {
        add(errors, "unauthorized", "error",
            "The platform refuses the API key (fingerprint " + parts.account.fingerprint() + ").",
            info(error_name::unauthorized).hint);
    }
    if (const auto& why = parts.account.unreachable()) {
        add(errors, "cloud_unreachable", "error",
            "The platform at " + parts.account.base_url() + " could not be reached: " + *why + ".",
            info(error_name::cloud_unreachable).hint);
    }
    if (const std::size_t queued = parts.manager.queued(); queued != 0) {
        add(warnings, "cap_reached", "warning",
            std::to_string(queued) + (queued == 1 ? " sandbox waits" : " sandboxes wait") +
                " for one of " + std::to_string(parts.max_active) + " active ones to stop.",
            info(error_name::cap_reached).hint);
    }
    if (const std::size_t lost = parts.manager.orphans().size(); lost != 0) {
        add(warnings, "orphans", "warning",
            std::to_string(lost) +
                (lost == 1 ? " sandbox was made by this daemon, and no record of it is left."
                           : " sandboxes were made by this daemon, and no record of them is left."),
            "deepinfra-sandboxd doctor tells what can be done; with --fix it does that");
    }
    for (const std::string& text : parts.complaints) {
        add(warnings, "state_damaged", "warning", text,
            "Compare with your DeepInfra dashboard; delete the kept file once nothing in it is "
            "missed.");
    }
    for (const std::string& text : parts.manager.complaints()) {
        add(warnings, "degraded", "warning", text, "");
    }
    if (const std::string& why = parts.execs.journal_trouble(); !why.empty()) {
        add(warnings, "journal", "warning",
            "The journal of commands cannot be kept (" + why +
                "): should the daemon end now, it would not find running commands again.",
            "Make room in the state directory, or put its permissions right.");
    }
    const std::map<std::string, std::string> without_shim = parts.execs.shims().all_unusable();
    const std::map<std::string, std::size_t> runners_gone = parts.execs.shims().runners_gone();
    for (const sandbox::view& shown : parts.manager.list()) {
        const auto gone = runners_gone.find(shown.record.sandbox_id);
        if (gone != runners_gone.end()) {
            add(warnings, "runner_gone", "warning",
                "In sandbox " + gone->first + ", " + std::to_string(gone->second) +
                    (gone->second == 1 ? " command was" : " commands were") +
                    " lost with the process that kept it: killed by a command (kill -9 -1), for "
                    "want of memory, or by a platform that ends whole process trees when a "
                    "connection breaks. Nothing was run again.",
                "If it happens whenever a connection breaks, expect it of every long command.");
        }
        const auto found = without_shim.find(shown.record.sandbox_id);
        if (found != without_shim.end()) {
            add(warnings, "shim_unusable", "warning",
                "Commands in sandbox " + found->first + " run without the shim (" + found->second +
                    "): one whose connection is lost cannot be found again, and bytes that are not "
                    "UTF-8 are replaced.",
                "");
        }
    }
    errors.insert(errors.end(), warnings.begin(), warnings.end());
    return errors;
}

} // namespace sandboxd::rpc
