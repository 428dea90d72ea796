// Ctrl+Enter presses the button that shows this shortcut, wherever the focus is. Without this a radio button keeps the
// key to itself, an open list adds its option, and a focused button such as "Clear all" is pressed instead.

if (!window.prepShortcuts) {
  window.prepShortcuts = true;
  const isText = (element) => element.matches?.("textarea, input:not([type=radio], [type=checkbox], [role=combobox]), [contenteditable]");
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || isText(event.target)) return;
    const labels = [...document.querySelectorAll("button:not(:disabled) kbd[aria-label$=Enter]")];
    const label = labels.find((each) => each.getAttribute("aria-label").includes("Shift") === event.shiftKey);
    if (!label) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    label.closest("button").click();
  }, true);
}
