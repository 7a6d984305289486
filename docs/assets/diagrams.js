// Draws the diagrams of a page. The library beside this file is loaded on pages that have one, and from nowhere else.
(() => {
  const diagrams = document.querySelectorAll("div.diagram");
  if (!diagrams.length) return;
  const here = new URL("mermaid.tiny.js", document.currentScript.src);
  const script = document.createElement("script");
  script.src = here.href;
  script.onload = () => {
    const dark = document.body.dataset.mdColorScheme === "slate";
    window.mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral", securityLevel: "strict" });
    window.mermaid.run({ nodes: diagrams });
  };
  document.head.append(script);
})();
