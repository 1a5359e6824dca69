// The method table against the protocol's own files: no method too many or too few, and the
// decoders take what the schemas' examples show and refuse what the schemas refuse.
#include "base/error.hpp"
#include "protocol/openrpc.hpp"
#include "rpc/methods.hpp"

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_to.hpp>
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace sandboxd;

namespace {

namespace json = boost::json;

struct described {
    std::string name;
    json::object schema;                // of the params
    std::vector<json::object> examples; // params, also of those that end in an error
};

json::object params_of(const json::value& example) {
    json::object params;
    for (const json::value& each : example.at("params").as_array()) {
        params[each.at("name").as_string()] = each.at("value");
    }
    return params;
}

// What clients may call, from the document that rpc.discover answers with.
const std::vector<described>& protocol_methods() {
    static const std::vector<described> all = [] {
        std::vector<described> found;
        const json::value document = json::parse(protocol::openrpc_json());
        for (const json::value& each : document.at("methods").as_array()) {
            if (each.at("x-direction") != "client-to-daemon") continue;
            described method;
            method.name = json::value_to<std::string>(each.at("name"));
            method.schema = each.at("x-params").as_object();
            for (const char* kind : {"examples", "x-error-examples"}) {
                if (const json::value* examples = each.as_object().if_contains(kind)) {
                    for (const json::value& example : examples->as_array()) {
                        method.examples.push_back(params_of(example));
                    }
                }
            }
            found.push_back(std::move(method));
        }
        return found;
    }();
    return all;
}

bool accepted(const std::string& method, const json::object& params) {
    try {
        rpc::methods().at(method).check(params);
        return true;
    } catch (const rpc_error& error) {
        CHECK(error.name() == error_name::invalid_params);
        CHECK(std::string(error.what()).find("nothing was done") != std::string::npos);
        return false;
    }
}

std::vector<std::string> texts(const json::value* list) {
    return list == nullptr ? std::vector<std::string>{}
                           : json::value_to<std::vector<std::string>>(*list);
}

} // namespace

TEST_CASE("methods: the table holds what the protocol says clients may call, and nothing else") {
    std::set<std::string> ours;
    for (const auto& [name, method] : rpc::methods()) {
        ours.insert(name);
        CHECK(method.check);
        CHECK(method.run);
    }
    std::set<std::string> theirs;
    for (const described& each : protocol_methods())
        theirs.insert(each.name);
    CHECK(theirs.size() == protocol_methods().size());
    CHECK(ours == theirs);

    // The document itself holds every method and notification there is.
    const auto names = protocol::method_names();
    const json::value document = json::parse(protocol::openrpc_json());
    CHECK(document.at("methods").as_array().size() == names.size());
    for (const std::string& name : ours) {
        CHECK(std::find(names.begin(), names.end(), name) != names.end());
    }
}

TEST_CASE("methods: every example is accepted") {
    for (const described& method : protocol_methods()) {
        CAPTURE(method.name);
        CHECK_FALSE(method.examples.empty());
        for (const json::object& example : method.examples) {
            CAPTURE(json::serialize(example));
            CHECK(accepted(method.name, example));
        }
    }
}

TEST_CASE("methods: a field that nobody knows is refused, except by hello") {
    for (const described& method : protocol_methods()) {
        CAPTURE(method.name);
        for (json::object example : method.examples) {
            example["a_field_from_the_future"] = 1;
            CHECK(accepted(method.name, example) == (method.name == "hello"));
        }
        CHECK((method.schema.contains("additionalProperties") || method.name == "hello"));
    }
}

TEST_CASE("methods: a required field that is missing is refused") {
    int tried = 0;
    for (const described& method : protocol_methods()) {
        CAPTURE(method.name);
        for (const json::object& example : method.examples) {
            for (const std::string& field : texts(method.schema.if_contains("required"))) {
                CAPTURE(field);
                json::object less = example;
                REQUIRE(less.erase(field) == 1);
                CHECK_FALSE(accepted(method.name, less));
                ++tried;
            }
            // "exactly one of": without the one it has, none is left.
            const json::value* choices = method.schema.if_contains("oneOf");
            if (choices == nullptr) continue;
            json::object none = example;
            for (const json::value& choice : choices->as_array()) {
                for (const std::string& field : texts(choice.as_object().if_contains("required")))
                    none.erase(field);
            }
            CHECK_FALSE(accepted(method.name, none));
            ++tried;
        }
    }
    CHECK(tried > 20);
}

TEST_CASE("methods: a field of another type is refused") {
    // None of them fits any field of a request.
    const json::value nonsense[] = {nullptr, json::array{json::array{}},
                                    json::object{{"no", "such"}}, -1.5};
    for (const described& method : protocol_methods()) {
        CAPTURE(method.name);
        for (const json::object& example : method.examples) {
            for (const auto& [field, value] : example) {
                const bool known = method.schema.at("properties").as_object().contains(field);
                CAPTURE(std::string(field));
                for (const json::value& other : nonsense) {
                    CAPTURE(json::serialize(other));
                    json::object changed = example;
                    changed[field] = other;
                    if (field == "env" && other.is_object()) continue; // there it is a variable
                    CHECK(accepted(method.name, changed) == !known);
                }
            }
        }
    }
}

TEST_CASE("methods: every field of a schema is known to its decoder") {
    for (const described& method : protocol_methods()) {
        CAPTURE(method.name);
        const json::value* properties = method.schema.if_contains("properties");
        if (properties == nullptr || method.name == "hello") continue;
        for (const auto& [field, schema] : properties->as_object()) {
            CAPTURE(std::string(field));
            // Whatever is wrong with it, it is not that the field is unknown.
            for (const json::object& example : method.examples) {
                json::object more = example;
                more[field] = nullptr;
                try {
                    rpc::methods().at(method.name).check(more);
                } catch (const rpc_error& error) {
                    CHECK(std::string(error.what()).find("is not known") == std::string::npos);
                }
            }
        }
    }
}
