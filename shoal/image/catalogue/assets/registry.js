// The registry that the commands name is the reader's own; and a button beside each command copies it.

function followRegistry() {
  const input = document.getElementById("registry");
  input?.addEventListener("input", () => {
    const registry = input.value.trim().replace(/\/+$/, "") || "REGISTRY";
    for (const span of document.querySelectorAll(".registry")) span.textContent = registry;
  });
}

function offerCopies() {
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.closest(".snippet").querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        // No clipboard here (an old browser, a page without rights): select it, so that Ctrl-C does.
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
}
