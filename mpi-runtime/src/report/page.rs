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
        ("{{charts.css}}", include_str!("vendor/uPlot.min.css")),
        ("{{page.css}}", include_str!("page/page.css")),
        ("{{license}}", include_str!("vendor/LICENSE")),
        ("{{charts.js}}", include_str!("vendor/uPlot.iife.min.js")),
        ("{{format.js}}", include_str!("page/format.js")),
        ("{{charts.own.js}}", include_str!("page/charts.js")),
        ("{{sections.js}}", include_str!("page/sections.js")),
        ("{{page.js}}", include_str!("page/page.js")),
        ("{{table}}", &text(table)),
        // The last one: nothing in it is looked at.
        ("{{data}}", &script(&data)),
    ];
    Ok(filled(include_str!("page/page.html"), &parts))
}

/// A template with its parts in it. Each stands once, in this order.
fn filled(template: &str, parts: &[(&str, &str)]) -> String {
    let (mut page, mut rest) = (String::new(), template);
    for (name, part) in parts {
        if let Some((before, after)) = rest.split_once(name) {
            page.extend([before, part]);
            rest = after;
        }
    }
    page + rest
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
        let page = filled("a{{x}}b{{y}}c", &[("{{x}}", "{{y}}"), ("{{y}}", "2")]);
        assert_eq!(page, "a{{y}}b2c");
        assert_eq!(script("</script><!--"), "\\u003c/script>\\u003c!--");
        assert_eq!(text("<b>&"), "&lt;b&gt;&amp;");
    }
}
