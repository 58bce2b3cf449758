/** Dark or light: as the system says, until the user says otherwise. */

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
      // A browser that keeps nothing still has both themes.
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
