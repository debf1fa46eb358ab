// Server-sent events resume where they stopped, also after a refused connection: htmx then forgets the last identity.
"use strict";
let last = "";
document.addEventListener("htmx:sseMessage", event => { if (event.detail.lastEventId) last = event.detail.lastEventId; });
htmx.createEventSource = address => new EventSource(last ? address + (address.includes("?") ? "&" : "?") + "from=" + last : address);

// A part of the page is replaced as a whole. What a person types in it, and where, is kept.
let typed = null;
document.addEventListener("htmx:sseBeforeMessage", event => {
  const active = document.activeElement, place = event.target;
  typed = null;
  if (!(place instanceof Element) || !place.contains(active)) return;
  typed = { name: active.name, action: active.form && active.form.action, start: active.selectionStart,
            values: [...place.querySelectorAll("input:not([type=hidden])")].map(input => [input.form.action, input.name, input.value]) };
});
document.addEventListener("htmx:afterSwap", event => {
  if (!typed) return;
  const inputs = [...event.target.querySelectorAll("input:not([type=hidden]), button")];
  for (const [action, name, value] of typed.values) {
    const input = inputs.find(each => each.form && each.form.action === action && each.name === name);
    if (input) input.value = value;
  }
  const focused = inputs.find(each => each.form && each.form.action === typed.action && each.name === typed.name);
  if (focused) { focused.focus(); if (typed.start != null && focused.setSelectionRange) focused.setSelectionRange(typed.start, typed.start); }
  typed = null;
});

// When the report has been written, the page shows it.
document.addEventListener("htmx:afterSwap", () => {
  if (document.querySelector("#status [data-page]") && !document.querySelector("iframe")) location.reload();
});

// A double click sends a form once. The key of the form makes a repetition harmless in any case.
document.addEventListener("submit", event => {
  for (const button of event.target.querySelectorAll("button")) setTimeout(() => { button.disabled = true; }, 0);
});
window.addEventListener("pageshow", event => { if (event.persisted) location.reload(); });
