//! The page: one file of HTML that needs nothing else.
//!
//! Invariants: the page asks for nothing by itself, and its own policy forbids it; what runs say
//! stands in it as data, and no name or reason in it can end the script that it stands in.

use super::Report;
use crate::error::Error;

/// The page of a report. `table` is what it shows where scripts are not run.
pub(super) fn html(report: &Report, table: &str) -> Result<String, Error> {
    let data = serde_json::to_string(report)
        .map_err(|error| Error::Failure(format!("the report as JSON: {error}")))?;
    let parts = [
        ("charts.css", include_str!("vendor/uPlot.min.css")),
        ("page.css", include_str!("page/page.css")),
        ("license", include_str!("vendor/LICENSE")),
        ("charts.js", include_str!("vendor/uPlot.iife.min.js")),
        ("format.js", include_str!("page/format.js")),
        ("curves.js", include_str!("page/curves.js")),
        ("tables.js", include_str!("page/tables.js")),
        ("sections.js", include_str!("page/sections.js")),
        ("page.js", include_str!("page/page.js")),
        ("table", &text(table)),
        ("data", &script(&data)),
    ];
    Ok(filled(include_str!("page/page.html"), &parts))
}

/// A template with its parts in the place of `{{name}}`. What looks like that in a part stays.
fn filled(template: &str, parts: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, name, after)) = next(rest) {
        page += before;
        let part = parts.iter().find(|(known, _)| *known == name);
        page += part.map_or("", |(_, part)| part);
        rest = after;
    }
    page + rest
}

/// What is before the next `{{name}}`, the name, and what is after it.
fn next(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once("{{")?;
    let (name, after) = rest.split_once("}}")?;
    Some((before, name, after))
}

/// JSON inside of a script: nothing in it looks like the script's end or like a comment.
fn script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_where_they_belong_and_are_not_templates() {
        let page = filled("a{{y}}b{{x}}c", &[("x", "{{y}}"), ("y", "2")]);
        assert_eq!(page, "a2b{{y}}c");
        assert_eq!(script("</script><!--"), "\\u003c/script>\\u003c!--");
        assert_eq!(text("<b>&"), "&lt;b&gt;&amp;");
    }
}
