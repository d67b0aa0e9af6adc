"""The pages: HTML templates, CSS and ES modules, and the routes that serve them.

Runs in the process of `airlock serve`; the pages take all they show from the API, by relative URLs.

A page is a template `NAME.html` that extends base.html, includes `parts/NAME.html` (its content,
which a report includes as well), and names the module `static/NAME.js`. That module exports
`start(root)`, root being the element of its content. Every module keeps to one form of import and
export, which `monitor.report.write` reads: `import { a, b } from "./dom.js";` and
`export function`, `export const`, `export class`, at the beginning of a line. No module sets
innerHTML; only charts.js knows uPlot.
"""
