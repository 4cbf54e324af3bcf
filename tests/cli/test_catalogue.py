"""`partita models` and `partita clusters`: every entry, with what is only planned for and its sources."""

from tests.cli.conftest import Partita

from partita.specs import catalogue_model, cluster_families, model_names


def test_models_say_which_of_them_are_only_planned_for(partita: Partita):
    found = {model["name"]: model for model in partita("models", "--json").json}
    assert tuple(found) == model_names()
    assert found["llama-3-70b"]["beyond_engine"] == []
    assert found["gemma-3-27b"]["beyond_engine"] == []
    assert found["minicpm3-4b"]["beyond_engine"] == ["latent attention", "longrope rotary scaling"]
    gemma = found["gemma-3-27b"]
    assert (gemma["local_layers"], gemma["window"], gemma["global_period"]) == (52, 1024, 6)
    assert found["minicpm3-4b"]["kv_elements_per_token"] == 62 * (256 + 32)
    for name, model in found.items():
        assert model["parameters"] == catalogue_model(name).parameters
        assert model["sources"]["d_model"]


def test_the_table_of_models_has_a_line_for_each(partita: Partita):
    lines = partita("models").out.splitlines()
    for name, runs in (("llama-3-70b", "yes"), ("gpt-3-175b", "yes"), ("minicpm3-4b", "no")):
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert line.split()[-1] == runs


def test_clusters_have_all_fields_of_chip_and_fabric(partita: Partita):
    found = {cluster["name"]: cluster for cluster in partita("clusters", "--json").json}
    assert tuple(found) == tuple(family.name for family in cluster_families())
    h100 = found["h100"]
    assert [axis["kind"] for axis in h100["fabric"]] == ["network", "switch"]
    assert [axis["in_network_reduction"] for axis in h100["fabric"]] == [False, True]
    assert h100["chip"]["runtime_bytes"] > 1e9
    assert h100["chip"]["price_per_hour"] is None
    assert found["gb200"]["aliases"] == ["gb200-nvl72", "b200-nvl72"]
    assert "79.11 GiB" in h100["sources"]["chip"]["runtime_bytes"]


def test_the_table_of_clusters_names_each_form(partita: Partita):
    out = partita("clusters").out
    for family in cluster_families():
        assert family.example_name in out.replace("\n", " ")
