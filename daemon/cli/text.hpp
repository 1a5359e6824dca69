// Text for people: escaping of what others wrote, colour, tables, times. Pure.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cli {

// `text` with everything that could move a cursor, change the terminal or reorder the line written
// as \xNN or \u{N}: control characters (C0, C1, DEL), bidirectional overrides, invalid UTF-8. Names
// come from other programs and from inside sandboxes.
std::string printable(std::string_view text);

// Columns that `text` (valid UTF-8, printable) takes on a terminal.
std::size_t display_width(std::string_view text);

// `text` (as above), or as much of its beginning as takes that many columns with "..." behind it.
std::string cut_to(std::size_t columns, std::string_view text);

enum class paint { plain, good, bad, warning, faint, strong };

// Colours, or their absence.
class style {
public:
    explicit style(bool colour = false) : colour_(colour) {}
    std::string operator()(paint, std::string_view text) const;

private:
    bool colour_;
};

// Aligned columns under headings. Cells are escaped with printable(); no line has trailing blanks.
class table {
public:
    struct cell {
        template <std::convertible_to<std::string_view> Text>
        cell(const Text& cell_text, paint cell_look = paint::plain)
            : text(printable(cell_text)), look(cell_look) {}
        std::string text;
        paint look;
    };
    enum class align { left, right };
    struct column {
        std::string heading;
        align side = align::left;
    };

    explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
    // As many cells as there are columns.
    void row(std::vector<cell> cells) { rows_.push_back(std::move(cells)); }
    std::string render(const style&) const;

private:
    std::vector<column> columns_;
    std::vector<std::vector<cell>> rows_;
};

// "45s", "12m 5s", "3h 12m", "2d 4h".
std::string human_time(std::chrono::duration<double> time);

// "1 sandbox", "2 sandboxes".
std::string counted(std::size_t number, std::string_view one, std::string_view many);

} // namespace sandboxd::cli
