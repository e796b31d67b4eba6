(() => {
  const root = document.documentElement;
  let host = null;
  try { host = window.parent === window ? null : window.parent.document; } catch { host = null; }
  const paint = () => {
    let theme = null;
    try {
      const seen = host?.documentElement.classList;
      theme = seen?.contains("dark") ? "dark" : seen?.contains("light") ? "light" : localStorage.getItem("theme");
    } catch { theme = null; }
    if (theme === "dark" || theme === "light") root.dataset.theme = theme; else delete root.dataset.theme;
  };
  paint();
  if (!host) return;
  root.classList.add("framed");
  new MutationObserver(paint).observe(host.documentElement, { attributes: true, attributeFilter: ["class"] });
  addEventListener("click", (event) => {
    const link = event.target.closest("a[target=_top]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const outside = host.createElement("a");
    outside.href = link.href;
    host.body.append(outside);
    outside.click();
    outside.remove();
  });
})();
