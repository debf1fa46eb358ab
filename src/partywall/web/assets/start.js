// The editor of documents. Without it, the plain text field works, and mistakes are shown below it.
"use strict";
const area = document.getElementById("document"), mistakes = document.getElementById("mistakes");
let asked = 0;

async function problemsOf(text) {
  if (!text.trim()) return [];
  const answer = await fetch(document.getElementById("editor").dataset.check || "/check", { method: "POST", body: text, headers: { "Content-Type": "text/plain" } });
  return answer.ok ? (await answer.json()).problems : [];
}

function show(problems) {
  const list = document.createElement("ul");
  list.className = "problems";
  for (const problem of problems) {
    const item = document.createElement("li");
    if (problem.line) { const line = document.createElement("b"); line.textContent = "line " + problem.line; item.append(line, ": "); }
    if (problem.key) { const key = document.createElement("code"); key.textContent = problem.key; item.append(key, ": "); }
    item.append(problem.message);
    if (problem.remedy) { const remedy = document.createElement("span"); remedy.className = "remedy"; remedy.textContent = problem.remedy; item.append(remedy); }
    list.append(item);
  }
  mistakes.replaceChildren(...(problems.length ? [list] : []));
}

async function check(text) {
  const number = ++asked, problems = await problemsOf(text);
  if (number === asked) show(problems);
  return problems;
}

if (window.partywallEditor) {
  window.partywallEditor(area, document.getElementById("editor"), check);
} else {
  let timer = 0;
  area.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => check(area.value), 300); });
}
