// The editor of documents: CodeMirror with YAML, suggestions from the schema of scenarios, and mistakes at their lines.
//
// Suggestions work on indentation alone, so they also work where the text cannot be parsed yet. Flow style is not
// covered. The editor lives in a shadow root: its style sheets are then allowed without a nonce.
import { EditorView, basicSetup } from "codemirror";
import { EditorState } from "@codemirror/state";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { keymap } from "@codemirror/view";
import { linter, lintGutter } from "@codemirror/lint";
import { yaml, yamlLanguage } from "@codemirror/lang-yaml";
import { tags } from "@lezer/highlight";

/** The keys above line `n`, outermost first; 0 for an item of a list. indent: column of the key. */
export function pathAt(lines, n, indent) {
  const path = [];
  for (let i = n - 1; i >= 0 && indent > 0; i--) {
    const [, lead, dash, key] = /^(\s*)((?:- +)*)(?:([\w.@/-]+):(?:\s|$))?/.exec(lines[i]);
    const column = lead.length + dash.length;
    if (key && column < indent) { path.unshift(key); indent = column; }
    if (dash && lead.length < Math.floor(indent)) { path.unshift(0); indent = lead.length + 0.5; }
  }
  return path;
}

/** The schemas that apply at a path: every alternative of every step. */
export function schemasAt(root, path) {
  const spread = (schema, depth = 0) => {
    if (!schema || depth > 12) return [];
    if (schema.$ref) return spread(schema.$ref.split("/").slice(1).reduce((at, part) => at && at[part], root), depth + 1);
    const parts = [...(schema.anyOf || []), ...(schema.oneOf || []), ...(schema.allOf || [])];
    return [schema, ...parts.flatMap(part => spread(part, depth + 1))];
  };
  let at = spread(root);
  for (const step of path) {
    at = at.flatMap(schema => {
      if (step === 0) return spread(schema.items);
      const own = schema.properties && schema.properties[step];
      if (own) return spread(own);
      return typeof schema.additionalProperties === "object" ? spread(schema.additionalProperties) : [];
    });
  }
  return at;
}

function suggestions(schema) {
  return context => {
    const line = context.state.doc.lineAt(context.pos), before = line.text.slice(0, context.pos - line.from);
    const lines = context.state.doc.toString().split("\n"), number = line.number - 1;
    const value = /^(\s*(?:- +)*)([\w.-]+): *([\w.%-]*)$/.exec(before);
    if (value) {
      const path = pathAt(lines, number, value[1].length);
      const options = schemasAt(schema, [...path, value[2]]).flatMap(each => [...(each.enum || []), ...("const" in each ? [each.const] : []), ...(each.type === "boolean" ? [true, false] : [])]);
      return options.length ? { from: context.pos - value[3].length, options: [...new Set(options)].map(label => ({ label: String(label), type: "constant" })) } : null;
    }
    const key = /^(\s*(?:- +)*)([\w.-]*)$/.exec(before);
    if (!key || (!key[2] && !context.explicit)) return null;
    const path = pathAt(lines, number, key[1].length || 0);
    if (/- *$/.test(key[1])) path.push(0);
    const found = new Map();
    for (const each of schemasAt(schema, path))
      for (const [name, part] of Object.entries(each.properties || {}))
        if (!found.has(name)) found.set(name, { label: name, type: "property", apply: name + ": ", detail: part.type || "", info: part.description || part.title || "" });
    return found.size ? { from: context.pos - key[2].length, options: [...found.values()] } : null;
  };
}

// The colours are those of the page, so light and dark follow it.
const look = EditorView.theme({
  "&": { fontSize: ".9rem", backgroundColor: "var(--surface)", color: "var(--ink)", border: "1px solid var(--soft)", borderRadius: "6px" },
  "&.cm-focused": { outline: "3px solid var(--focus)", outlineOffset: "2px" },
  ".cm-scroller": { fontFamily: "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace", lineHeight: "1.5", minHeight: "18rem", maxHeight: "36rem" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--soft)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--none)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--gain)" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--ink)", border: "1px solid var(--soft)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--link)", color: "var(--paper)" },
  ".cm-completionInfo": { maxWidth: "24rem" },
});
const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--link)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.keyword], color: "var(--unsure)" },
]);

window.partywallEditor = async (area, place, check) => {
  const root = place.attachShadow({ mode: "open" });
  let schema = {};
  try { schema = await (await fetch(place.dataset.schema)).json(); } catch { /* no suggestions */ }
  const mistakes = linter(async view => {
    const document = view.state.doc;
    return (await check(document.toString())).map(problem => {
      const line = document.line(Math.min(Math.max(problem.line || 1, 1), document.lines));
      const lead = /^\s*/.exec(line.text)[0].length;
      const message = [problem.key, problem.message].filter(Boolean).join(": ");
      return { from: Math.min(line.from + lead, line.to), to: line.to, severity: "error", message: problem.remedy ? `${message}\n${problem.remedy}` : message };
    });
  }, { delay: 350 });
  const view = new EditorView({
    parent: root,
    root,
    state: EditorState.create({
      doc: area.value,
      extensions: [
        basicSetup, yaml(), yamlLanguage.data.of({ autocomplete: suggestions(schema) }), mistakes, lintGutter(), look,
        syntaxHighlighting(colours),
        EditorView.contentAttributes.of({ "aria-label": "Document", "aria-describedby": "mistakes", tabindex: "0" }),
        EditorView.updateListener.of(update => { if (update.docChanged) area.value = update.state.doc.toString(); }),
        keymap.of([{ key: "Mod-Enter", run: () => { area.form.requestSubmit(); return true; } }]),
      ],
    }),
  });
  document.documentElement.classList.add("editing");
  window.partywallView = view;
};
