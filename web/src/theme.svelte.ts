/** Dark or light theme: that of the system until the user chooses. */

type Name = "dark" | "light";
const KEY = "layerscope-theme";

export class Theme {
  #system = matchMedia("(prefers-color-scheme: light)");
  #chosen = $state<Name | null>(remembered());
  #light = $state(this.#system.matches);

  readonly name = $derived<Name>(this.#chosen ?? (this.#light ? "light" : "dark"));

  constructor() {
    this.#system.addEventListener("change", (event) => {
      this.#light = event.matches;
    });
    $effect.pre(() => {
      document.documentElement.dataset.theme = this.name;
    });
  }

  toggle(): void {
    this.#chosen = this.name === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, this.#chosen);
    } catch {
      // The theme also works in a browser without storage.
    }
  }
}

function remembered(): Name | null {
  try {
    const text = localStorage.getItem(KEY);
    return text === "dark" || text === "light" ? text : null;
  } catch {
    return null;
  }
}
