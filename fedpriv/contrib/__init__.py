"""Methods outside the optimizer protocol: DP-AGD (Lee & Kifer 2018), private selection (Liu & Talwar 2019)."""
